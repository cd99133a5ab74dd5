#include "model/formats/quantized_writer.h"

#include <cstring>

#include "base/check.h"
#include "tensor/half.h"

namespace sluice {
namespace {

template <typename T>
OutputTensor tensor_of(std::string name, const char* type, std::vector<int64_t> shape,
                       const std::vector<T>& values) {
  OutputTensor out{std::move(name), type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
  std::memcpy(out.data.data(), values.data(), out.data.size());
  return out;
}

// f16 [lines, columns] of the scales, transposed where the layout has groups before outputs.
OutputTensor scales_of(std::string name, const IntegerMatrix& m, bool groups_first) {
  std::vector<uint16_t> values(m.scale.size());
  for (int64_t r = 0; r < m.rows; r++)
    for (int64_t g = 0; g < m.groups(); g++)
      values[size_t(groups_first ? g * m.rows + r : r * m.groups() + g)] =
          f32_to_f16(m.scale[size_t(r * m.groups() + g)]);
  return groups_first ? tensor_of(std::move(name), "F16", {m.groups(), m.rows}, values)
                      : tensor_of(std::move(name), "F16", {m.rows, m.groups()}, values);
}

bool symmetric(const IntegerMatrix& m) {
  for (const uint8_t z : m.zero)
    if (z != 1 << (m.bits - 1)) return false;
  return true;
}

}  // namespace

std::vector<OutputTensor> awq_tensors(const std::string& base, const IntegerMatrix& m) {
  CHECK(m.bits == 4 && m.rows % 8 == 0);
  constexpr int kPlace[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t words = m.rows / 8;
  std::vector<uint32_t> weights(size_t(m.cols * words)), zeros(size_t(m.groups() * words));
  for (int64_t r = 0; r < m.rows; r++) {
    const int shift = 4 * kPlace[r % 8];
    for (int64_t c = 0; c < m.cols; c++)
      weights[size_t(c * words + r / 8)] |= uint32_t(m.q[size_t(r * m.cols + c)]) << shift;
    for (int64_t g = 0; g < m.groups(); g++)
      zeros[size_t(g * words + r / 8)] |= uint32_t(m.zero[size_t(r * m.groups() + g)]) << shift;
  }
  return {tensor_of(base + ".qweight", "I32", {m.cols, words}, weights),
          tensor_of(base + ".qzeros", "I32", {m.groups(), words}, zeros), scales_of(base + ".scales", m, true)};
}

std::vector<OutputTensor> gptq_tensors(const std::string& base, const IntegerMatrix& m) {
  const int64_t per = 32 / m.bits;
  CHECK(m.rows % per == 0 && m.cols % per == 0);
  std::vector<uint32_t> weights(size_t(m.cols / per * m.rows)), zeros(size_t(m.groups() * (m.rows / per)));
  std::vector<int32_t> index;
  for (int64_t c = 0; c < m.cols; c++) index.push_back(int32_t(c / m.group));
  for (int64_t r = 0; r < m.rows; r++) {
    for (int64_t c = 0; c < m.cols; c++)
      weights[size_t(c / per * m.rows + r)] |= uint32_t(m.q[size_t(r * m.cols + c)]) << (c % per * m.bits);
    for (int64_t g = 0; g < m.groups(); g++) {
      const uint8_t zero = m.zero[size_t(r * m.groups() + g)];
      CHECK(zero >= 1);
      zeros[size_t(g * (m.rows / per) + r / per)] |= uint32_t(zero - 1) << (r % per * m.bits);
    }
  }
  return {tensor_of(base + ".qweight", "I32", {m.cols / per, m.rows}, weights),
          tensor_of(base + ".qzeros", "I32", {m.groups(), m.rows / per}, zeros),
          scales_of(base + ".scales", m, true), tensor_of(base + ".g_idx", "I32", {m.cols}, index)};
}

std::vector<OutputTensor> packed_tensors(const std::string& base, const IntegerMatrix& m) {
  const int64_t per = 32 / m.bits, words = m.cols / per;
  CHECK(m.rows % per == 0 && m.cols % per == 0);
  std::vector<uint32_t> weights(size_t(m.rows * words));
  std::vector<OutputTensor> out;
  for (int64_t r = 0; r < m.rows; r++)
    for (int64_t c = 0; c < m.cols; c++)
      weights[size_t(r * words + c / per)] |= uint32_t(m.q[size_t(r * m.cols + c)]) << (c % per * m.bits);
  out.push_back(tensor_of(base + ".weight_packed", "I32", {m.rows, words}, weights));
  out.push_back(scales_of(base + ".weight_scale", m, false));
  out.push_back(tensor_of(base + ".weight_shape", "I64", {2}, std::vector<int64_t>{m.rows, m.cols}));
  if (symmetric(m)) return out;
  std::vector<uint32_t> zeros(size_t(m.rows / per * m.groups()));
  for (int64_t r = 0; r < m.rows; r++)
    for (int64_t g = 0; g < m.groups(); g++)
      zeros[size_t(r / per * m.groups() + g)] |= uint32_t(m.zero[size_t(r * m.groups() + g)])
                                                 << (r % per * m.bits);
  out.push_back(tensor_of(base + ".weight_zero_point", "I32", {m.rows / per, m.groups()}, zeros));
  return out;
}

std::vector<OutputTensor> int8_tensors(const std::string& base, const IntegerMatrix& m) {
  CHECK(m.bits == 8 && symmetric(m));
  std::vector<int8_t> weights(m.q.size());
  for (size_t i = 0; i < weights.size(); i++) weights[i] = int8_t(int(m.q[i]) - 128);
  return {tensor_of(base + ".weight", "I8", {m.rows, m.cols}, weights),
          scales_of(base + ".weight_scale", m, false)};
}

std::vector<OutputTensor> fp8_tensors(const std::string& base, const FloatMatrix& m) {
  const int64_t lines = (m.rows + m.block_rows - 1) / m.block_rows,
                columns = (m.cols + m.block_cols - 1) / m.block_cols;
  return {tensor_of(base + ".weight", "F8_E4M3", {m.rows, m.cols}, m.bits),
          tensor_of(base + (m.block_rows > 1 ? ".weight_scale_inv" : ".weight_scale"), "F32", {lines, columns},
                    m.scale)};
}

}  // namespace sluice
