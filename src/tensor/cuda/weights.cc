#include "tensor/cuda/weights.h"
