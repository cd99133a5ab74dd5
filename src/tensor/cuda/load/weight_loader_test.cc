#include "tensor/cuda/load/weight_loader.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tensor/cuda/linear/int4_rows.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda::test {
namespace {

MemoryBackend& memory() {
  static MemoryBackend backend;
  return backend;
}

// Random rows of a format; float rows are offered as stored where asked for, at an odd address.
class RandomRows final : public RowSource {
 public:
  RandomRows(int64_t rows, int64_t cols, WeightFormat format, uint32_t seed, bool stored = false)
      : rows_(rows), cols_(cols), format_(format), stored_(stored) {
    std::mt19937 rng(seed);
    const auto normal = [&] { return std::normal_distribution<float>(0, 0.1f)(rng); };
    if (format.is_float()) {
      const size_t size = element_bytes();
      raw_.resize(size_t(rows * cols) * size + 1);
      for (size_t i = 0; i < size_t(rows * cols); ++i) {
        const float value = normal();
        const uint16_t half = format.element == WeightElement::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        std::memcpy(raw_.data() + 1 + i * size, size == 4 ? static_cast<const void*>(&value) : &half, size);
      }
      return;
    }
    const bool int4 = format.element == WeightElement::int4;
    for (int64_t i = 0; i < rows * cols; ++i) q_.push_back(int8_t(int4 ? rng() & 15 : int(rng() & 255) - 128));
    for (int64_t i = 0; i < rows * cols / format.group; ++i) {
      scale_.push_back(normal());
      min_.push_back(format.has_min ? normal() : 0);
    }
  }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return format_; }
  void decode(int64_t row, DecodedRow& out) const override {
    if (format_.is_float()) {
      const std::byte* at = raw_.data() + 1 + size_t(row * cols_) * element_bytes();
      out.raw.assign(at, at + size_t(cols_) * element_bytes());
      return;
    }
    const int64_t groups = cols_ / format_.group;
    out.q.assign(q_.begin() + row * cols_, q_.begin() + (row + 1) * cols_);
    out.scale.assign(scale_.begin() + row * groups, scale_.begin() + (row + 1) * groups);
    out.min.assign(min_.begin() + row * groups, min_.begin() + (row + 1) * groups);
  }
  std::span<const std::byte> stored_row(int64_t row) const override {
    if (!stored_) return {};
    return std::span(raw_).subspan(1 + size_t(row * cols_) * element_bytes(), size_t(cols_) * element_bytes());
  }

 private:
  size_t element_bytes() const { return format_.element == WeightElement::f32 ? 4 : 2; }

  int64_t rows_, cols_;
  WeightFormat format_;
  bool stored_;
  std::vector<std::byte> raw_;
  std::vector<int8_t> q_;
  std::vector<float> scale_, min_;
};

class SyntheticRows final : public RowSource {
 public:
  explicit SyntheticRows(int64_t rows) : rows_(rows) {}
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return 64; }
  WeightFormat format() const override { return {WeightElement::bf16, 0, false}; }
  void decode(int64_t, DecodedRow&) const override { ADD_FAILURE() << "the card makes these up"; }
  std::optional<Synthetic> synthetic() const override { return Synthetic{42, 0.5f}; }

 private:
  int64_t rows_;
};

// 4-bit rows with a scale that f16 cannot hold as the layout wants it.
class LargeScale final : public RowSource {
 public:
  int64_t rows() const override { return 40; }
  int64_t cols() const override { return 64; }
  WeightFormat format() const override { return {WeightElement::int4, 32, false}; }
  void decode(int64_t row, DecodedRow& out) const override {
    out.q.assign(64, 3);
    out.scale = {1, row == 35 ? 1000.f : 1.f}, out.min = {0, 0};
  }
};

std::vector<uint16_t> bits_of(const Weight& w) {
  return download<uint16_t>(w.parts.at(0).data.data(), size_t(w.rows * w.cols));
}

// Every value is what the judge holds, rounded to nearest even.
void expect_packed(const Weight& w, std::span<const Backend::PackSource> sources) {
  const auto judge = make_ref_backend();
  const auto want = judge->pack(sources);
  ASSERT_TRUE(want.ok());
  ASSERT_EQ(w.rows, want->rows);
  ASSERT_EQ(w.cols, want->cols);
  ASSERT_EQ(w.parts.size(), 1u);
  EXPECT_EQ(w.parts[0].rows, w.rows);
  EXPECT_EQ(w.parts[0].format, (WeightFormat{WeightElement::bf16, 0, false}));
  const auto got = bits_of(w);
  size_t at = 0, wrong = 0;
  for (const Weight::Part& part : want->parts)
    for (int64_t i = 0; i < part.rows * w.cols; ++i)
      wrong += got[at++] != f32_to_bf16(part.data.as<float>()[i]);
  EXPECT_EQ(wrong, 0u);
}

std::vector<int32_t> shuffled(int64_t rows, uint32_t seed) {
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 rng(seed);
  std::shuffle(order.begin(), order.end(), rng);
  return order;
}

constexpr WeightFormat kFormats[] = {{WeightElement::f32, 0, false},  {WeightElement::f16, 0, false},
                                     {WeightElement::bf16, 0, false}, {WeightElement::int8, 16, false},
                                     {WeightElement::int8, 32, true}, {WeightElement::int4, 32, false},
                                     {WeightElement::int4, 32, true}};

// Small buffers: pieces of few rows, and buffers used many times over.
std::unique_ptr<WeightLoader> small_loader() {
  return make_weight_loader(context(), memory(), {.threads = 3, .buffer_bytes = 4096, .buffers_per_thread = 2});
}

TEST(WeightLoader, EveryFormat) {
  const auto loader = small_loader();
  for (const WeightFormat& format : kFormats)
    for (bool stored : {false, true}) {
      if (stored && !format.is_float()) continue;
      SCOPED_TRACE(testing::Message() << weight_element_name(format.element) << " " << format.group);
      const RandomRows rows(301, 96, format, 5, stored);
      const Backend::PackSource plain{&rows, {}};
      const auto w = loader->pack(std::span(&plain, 1));
      ASSERT_TRUE(w.ok());
      expect_packed(*w, std::span(&plain, 1));
      const auto order = shuffled(301, 6);
      const Backend::PackSource ordered{&rows, order};
      const auto v = loader->pack(std::span(&ordered, 1));
      ASSERT_TRUE(v.ok());
      expect_packed(*v, std::span(&ordered, 1));
    }
}

TEST(WeightLoader, SeveralSources) {
  const auto loader = small_loader();
  std::vector<std::unique_ptr<RandomRows>> rows;
  std::vector<std::vector<int32_t>> orders;
  std::vector<Backend::PackSource> sources;
  for (const WeightFormat& format : kFormats) {
    const int64_t count = 1 + 40 * int64_t(rows.size());
    // Of 96 columns, which the 4-bit layout does not take.
    rows.push_back(std::make_unique<RandomRows>(count, 96, format, uint32_t(count), format.is_float()));
    orders.push_back(rows.size() % 2 ? shuffled(count, uint32_t(count)) : std::vector<int32_t>());
  }
  for (size_t i = 0; i < rows.size(); ++i) sources.push_back({rows[i].get(), orders[i]});
  const auto w = loader->pack(sources);
  ASSERT_TRUE(w.ok());
  expect_packed(*w, sources);
}

// Many weights in flight: none waits for the one before, and every one arrives.
TEST(WeightLoader, Many) {
  const auto loader = make_weight_loader(context(), memory());
  std::vector<std::unique_ptr<RandomRows>> rows;
  std::vector<Weight> weights;
  for (uint32_t i = 0; i < 40; ++i) {
    rows.push_back(std::make_unique<RandomRows>(1 + i * 37, 1024, kFormats[2], i, i % 2));
    const Backend::PackSource source{rows.back().get(), {}};
    auto w = loader->pack(std::span(&source, 1));
    ASSERT_TRUE(w.ok());
    weights.push_back(std::move(*w));
  }
  loader->finish();
  for (size_t i = 0; i < rows.size(); ++i) {
    const Backend::PackSource source{rows[i].get(), {}};
    expect_packed(weights[i], std::span(&source, 1));
  }
}

// What the card holds of a part in the 4-bit layout, as bf16's values.
std::vector<float> expanded(const Weight::Part& part, int64_t cols) {
  const DeviceBytes out(size_t(part.rows * cols) * 2);
  int4_expand(context(), part.data.data(), {part.rows, cols, part.format.group}, 0, part.rows, out.data());
  return download_bf16(out.data(), size_t(part.rows * cols));
}

void expect_near(const std::vector<float>& got, const float* want) {
  size_t wrong = 0;
  // bf16, and minima rounded to 11 bits.
  for (size_t i = 0; i < got.size(); ++i)
    wrong += !(std::fabs(got[i] - want[i]) <= 4e-3f * std::fabs(want[i]) + 3e-4f);
  EXPECT_EQ(wrong, 0u);
}

// Neighbours that are kept alike are one part, whatever their rows; others are parts of their own.
TEST(WeightLoader, FourBitsStayWhatTheyAre) {
  const WeightFormat in64{WeightElement::int4, 64, true};
  const RandomRows a(20, 256, in64, 1), b(301, 256, in64, 2), c(9, 256, kFormats[1], 3),
      d(40, 256, {WeightElement::int4, 32, false}, 4), e(16, 256, {WeightElement::int4, 256, true}, 5);
  const auto order = shuffled(301, 3);
  const Backend::PackSource sources[] = {{&a, {}}, {&b, order}, {&c, {}}, {&d, {}}, {&e, {}}};
  const auto loader = small_loader();
  const auto w = loader->pack(sources);
  ASSERT_TRUE(w.ok());
  wait();
  const auto judge = make_ref_backend();
  const auto want = judge->pack(sources);
  std::vector<float> values;
  for (const Weight::Part& part : want->parts)
    values.insert(values.end(), part.data.as<float>(), part.data.as<float>() + part.rows * 256);

  ASSERT_EQ(w->parts.size(), 4u);
  EXPECT_EQ(w->rows, 386);
  const int64_t rows[] = {321, 9, 40, 16}, groups[] = {64, 0, 32, 128};
  int64_t row = 0;
  for (size_t i = 0; i < 4; ++i) {
    const Weight::Part& part = w->parts[i];
    EXPECT_EQ(part.row_begin, row);
    ASSERT_EQ(part.rows, rows[i]);
    EXPECT_EQ(part.format.group, groups[i]);
    if (part.format.element == WeightElement::int4) {
      expect_near(expanded(part, 256), &values[size_t(row * 256)]);
    } else {
      EXPECT_EQ(part.format, WeightFormat{WeightElement::bf16});
      expect_near(download_bf16(part.data.data(), size_t(part.rows * 256)), &values[size_t(row * 256)]);
    }
    row += part.rows;
  }
}

// experts() takes bf16 alone; and what the layout cannot hold is bf16 too.
TEST(WeightLoader, FourBitsThatBecomeBf16) {
  const auto loader = small_loader();
  const RandomRows rows(33, 256, kFormats[6], 1), narrow(33, 96, kFormats[6], 1);
  for (const Backend::PackSource& source :
       {Backend::PackSource{&rows, {}, true}, Backend::PackSource{&narrow, {}}}) {
    const auto w = loader->pack(std::span(&source, 1));
    ASSERT_TRUE(w.ok());
    expect_packed(*w, std::span(&source, 1));
  }
  const LargeScale large;
  const Backend::PackSource source{&large, {}};
  const auto w = loader->pack(std::span(&source, 1));
  ASSERT_TRUE(w.ok());
  expect_packed(*w, std::span(&source, 1));
}

TEST(WeightLoader, SyntheticIsMadeUpOnTheCard) {
  const auto loader = small_loader();
  const SyntheticRows made_up(4096);
  const RandomRows read(5, 64, kFormats[2], 1);
  const Backend::PackSource sources[] = {{&made_up, {}}, {&read, {}}};
  const auto w = loader->pack(sources);
  ASSERT_TRUE(w.ok());
  const auto values = download_bf16(w->parts[0].data.data(), size_t(w->rows * w->cols));
  double sum = 0, squares = 0;
  const size_t count = 4096 * 64;
  for (size_t i = 0; i < count; ++i) sum += values[i], squares += double(values[i]) * values[i];
  EXPECT_NEAR(sum / double(count), 0, 0.01);
  EXPECT_NEAR(squares / double(count), 0.25, 0.01);
  DecodedRow row;
  read.decode(4, row);
  EXPECT_EQ(std::memcmp(row.raw.data(), bits_of(*w).data() + (4096 + 4) * 64, 128), 0);
}

TEST(WeightLoader, SaysWhatIsWrong) {
  const auto loader = small_loader();
  const RandomRows narrow(3, 12, kFormats[0], 1), wide(3, 16, kFormats[0], 1);
  const Backend::PackSource odd{&narrow, {}};
  const auto a = loader->pack(std::span(&odd, 1));
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(a.error().message.find("12 columns"), std::string::npos) << a.error().message;

  const Backend::PackSource both[] = {{&wide, {}}, {&narrow, {}}};
  const auto b = loader->pack(both);
  ASSERT_FALSE(b.ok());
  EXPECT_EQ(b.error().code, ErrorCode::kInvalidArgument);

  const SyntheticRows huge(int64_t{1} << 35);  // 4 TiB
  const Backend::PackSource too_large{&huge, {}};
  const auto c = loader->pack(std::span(&too_large, 1));
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(c.error().message.find("short of"), std::string::npos) << c.error().message;

  const Backend::PackSource good{&wide, {}};  // and goes on after that
  const auto d = loader->pack(std::span(&good, 1));
  ASSERT_TRUE(d.ok());
  expect_packed(*d, std::span(&good, 1));
}

}  // namespace
}  // namespace sluice::cuda::test
