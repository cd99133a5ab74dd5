// What is written is what is read: every layout comes back bit for bit.
#include "model/formats/quantized_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <random>

#include "model/formats/quantized_linear.h"
#include "model/formats/rows.h"
#include "tensor/fp8.h"
#include "tensor/half.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class QuantizedWriter : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(dir_); }
  void TearDown() override { fs::remove_all(dir_); }

  IntegerMatrix integers(int bits, int64_t group, bool symmetric) {
    IntegerMatrix m{16, 128, group, bits, {}, {}, {}};
    for (int64_t i = 0; i < m.rows * m.cols; i++) m.q.push_back(uint8_t(random_() % (1u << bits)));
    for (int64_t i = 0; i < m.rows * m.groups(); i++) {
      m.scale.push_back(f16_to_f32(f32_to_f16(0.001f * float(1 + random_() % 100))));
      m.zero.push_back(symmetric ? uint8_t(1 << (bits - 1)) : uint8_t(1 + random_() % ((1u << bits) - 1)));
    }
    return m;
  }

  // The layer as the folder's reader decodes it, in float32.
  std::vector<float> read_back(const std::vector<OutputTensor>& tensors, const Quantization& quantization) {
    EXPECT_TRUE(write_safetensors((dir_ / "model.safetensors").string(), tensors, {{"format", "pt"}}).ok());
    auto folder = SafetensorsFolder::open(dir_.string());
    EXPECT_TRUE(folder.ok()) << folder.error().message;
    auto found = find_quantized(quantization, **folder, "layer", 16, 128);
    EXPECT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->tensors.size(), tensors.size());
    std::vector<float> out(16 * 128);
    DecodedRow scratch;
    for (int64_t r = 0; r < 16; r++) decode_f32(*found->rows, r, scratch, out.data() + r * 128);
    return out;
  }

  // scale * q - scale * zero, as the formats that have minima compute it.
  static std::vector<float> values(const IntegerMatrix& m) {
    std::vector<float> out;
    const int middle = m.bits == 8 ? 128 : 0;
    for (size_t i = 0; i < m.q.size(); i++) {
      const size_t g = i / size_t(m.group);
      out.push_back(m.scale[g] * float(m.q[i] - middle) + float(middle - m.zero[g]) * m.scale[g]);
    }
    return out;
  }

  const fs::path dir_ = fs::temp_directory_path() / ("sluice_quantized_writer_" + std::to_string(getpid()));
  std::mt19937 random_{7};
};

using Method = Quantization::Method;

TEST_F(QuantizedWriter, AwqComesBackBitForBit) {
  const IntegerMatrix m = integers(4, 64, false);
  EXPECT_EQ(read_back(awq_tensors("layer", m), {Method::awq, 4, 64}), values(m));
}

TEST_F(QuantizedWriter, GptqComesBackBitForBit) {
  for (const int bits : {4, 8}) {
    const IntegerMatrix m = integers(bits, 32, false);
    EXPECT_EQ(read_back(gptq_tensors("layer", m), {Method::gptq, bits, 32, true}), values(m)) << bits;
  }
}

TEST_F(QuantizedWriter, PackedIntegersComeBackBitForBit) {
  for (const int bits : {4, 8}) {
    for (const bool symmetric : {false, true}) {
      const IntegerMatrix m = integers(bits, 64, symmetric);
      const auto tensors = packed_tensors("layer", m);
      EXPECT_EQ(tensors.size(), symmetric ? 3u : 4u);
      EXPECT_EQ(read_back(tensors, {Method::compressed}), values(m)) << bits;
    }
  }
}

TEST_F(QuantizedWriter, Int8PerOutputComesBackBitForBit) {
  const IntegerMatrix m = integers(8, 128, true);
  EXPECT_EQ(read_back(int8_tensors("layer", m), {Method::compressed}), values(m));
}

TEST_F(QuantizedWriter, Float8ComesBackAsItWas) {
  for (const int64_t block : {int64_t{1}, int64_t{8}}) {
    FloatMatrix m{16, 128, block, block == 1 ? 128 : 32, {}, {}};
    for (int i = 0; i < 16 * 128; i++) m.bits.push_back(uint8_t(random_() % 0x7f));
    for (int64_t i = 0; i < (block == 1 ? 16 : 2 * 4); i++) m.scale.push_back(0.01f * float(i + 1));
    Quantization q{block == 1 ? Method::compressed : Method::fp8};
    if (block > 1) q.block_rows = 8, q.block_cols = 32;
    const std::vector<float> got = read_back(fp8_tensors("layer", m), q);
    for (size_t i = 0; i < got.size(); i++) {
      const size_t r = i / 128, c = i % 128;
      const float scale = m.scale[block == 1 ? r : r / 8 * 4 + c / 32];
      ASSERT_EQ(got[i], e4m3_to_f32(m.bits[i]) * scale);
    }
  }
}

}  // namespace
}  // namespace sluice
