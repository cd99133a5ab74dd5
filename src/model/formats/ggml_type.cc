#include "model/formats/ggml_type.h"

#include <cstring>
#include <iterator>

#include "model/formats/blocks.h"

namespace sluice {
namespace {

constexpr WeightFormat kF32{WeightElement::f32, 0, false}, kF16{WeightElement::f16, 0, false},
    kBF16{WeightElement::bf16, 0, false};

WeightFormat int4(int group) { return {WeightElement::int4, group, true}; }
WeightFormat int8(int group, bool has_min) { return {WeightElement::int8, group, has_min}; }

// Float types have no decoder: their rows are copied as they are.
const GgmlType kTypes[] = {
    {0, "F32", 1, 4, kF32, nullptr},
    {1, "F16", 1, 2, kF16, nullptr},
    {30, "BF16", 1, 2, kBF16, nullptr},
    {2, "Q4_0", 32, 18, int4(32), decode_q4_0},
    {3, "Q4_1", 32, 20, int4(32), decode_q4_1},
    {6, "Q5_0", 32, 22, int8(32, false), decode_q5_0},
    {7, "Q5_1", 32, 24, int8(32, true), decode_q5_1},
    {8, "Q8_0", 32, 34, int8(32, false), decode_q8_0},
    {10, "Q2_K", 256, 84, int4(16), decode_q2_k},
    {11, "Q3_K", 256, 110, int4(16), decode_q3_k},
    {12, "Q4_K", 256, 144, int4(32), decode_q4_k},
    {13, "Q5_K", 256, 176, int8(32, true), decode_q5_k},
    {14, "Q6_K", 256, 210, int8(16, false), decode_q6_k},
};

// Known by size, so that a file with them can be listed and refused by the name of the tensor.
const GgmlType kUnreadable[] = {
    {9, "Q8_1", 32, 40, {}, nullptr},      {15, "Q8_K", 256, 292, {}, nullptr},
    {16, "IQ2_XXS", 256, 66, {}, nullptr}, {17, "IQ2_XS", 256, 74, {}, nullptr},
    {18, "IQ3_XXS", 256, 98, {}, nullptr}, {19, "IQ1_S", 256, 50, {}, nullptr},
    {20, "IQ4_NL", 32, 18, {}, nullptr},   {21, "IQ3_S", 256, 110, {}, nullptr},
    {22, "IQ2_S", 256, 82, {}, nullptr},   {23, "IQ4_XS", 256, 136, {}, nullptr},
    {24, "I8", 1, 1, {}, nullptr},         {25, "I16", 1, 2, {}, nullptr},
    {26, "I32", 1, 4, {}, nullptr},        {27, "I64", 1, 8, {}, nullptr},
    {28, "F64", 1, 8, {}, nullptr},        {29, "IQ1_M", 256, 56, {}, nullptr},
    {34, "TQ1_0", 256, 54, {}, nullptr},   {35, "TQ2_0", 256, 66, {}, nullptr},
    {39, "MXFP4", 32, 17, {}, nullptr},    {40, "NVFP4", 64, 36, {}, nullptr},
    {41, "Q1_0", 128, 18, {}, nullptr},
};

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& t : kTypes) {
    if (t.id == id) return &t;
  }
  for (const GgmlType& t : kUnreadable) {
    if (t.id == id) return &t;
  }
  return nullptr;
}

const GgmlType* find_ggml_type(const char* name) {
  for (const GgmlType& t : kTypes) {
    if (std::strcmp(t.name, name) == 0) return &t;
  }
  return nullptr;
}

bool GgmlType::readable() const { return this >= std::begin(kTypes) && this < std::end(kTypes); }

}  // namespace sluice
