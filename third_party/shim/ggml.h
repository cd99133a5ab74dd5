// llama.cpp's Jinja engine wants one macro of ggml.h. A failed assertion throws, so that a hostile
// chat template ends one request and not the process.
#pragma once
#include <stdexcept>
#define GGML_ASSERT(x) \
  do { if (!(x)) throw std::runtime_error("jinja: assertion failed: " #x); } while (0)
