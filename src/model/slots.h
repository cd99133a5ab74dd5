// The tensors that a decoder of a given spec needs: slot names and shapes. Checked before any weight is read.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace sluice {

struct Slot {
  std::string name;  // "blk.3.attn_q.weight"
  int64_t rows = 1;  // 1 for vectors
  int64_t cols = 0;
  bool matrix = true;  // false: kept as f32 on the device
};

// In the order in which they are loaded. Expert 5's tensors are called as the older GGUF files do:
// "ffn_gate.5.weight".
std::vector<Slot> slots_of(const ModelSpec& spec);

// "blk.3.attn_q.weight" -> {3, "attn_q.weight"}; layer -1 for names outside of layers.
struct SlotPlace {
  int layer = -1;
  std::string_view rest;
};
SlotPlace slot_place(std::string_view slot);

// "ffn_gate.5.weight" -> {"ffn_gate", 5}; expert -1 for what belongs to none.
struct ExpertPlace {
  std::string_view matrix;
  int expert = -1;
};
ExpertPlace expert_place(std::string_view rest);

}  // namespace sluice
