#include "tensor/cuda/linear/tune.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/cuda/rows/quantized_weight.h"
#include "tensor/cuda/rows/rows.h"

namespace sluice::cuda {
namespace {

constexpr int kCandidates = 8;
// All candidates take part in the first turns, the best of them in all. Turn by turn, since the clock falls as
// the card gets warm: what is timed last would look slow.
constexpr int kFirstTurns = 2, kTurns = 6;
constexpr size_t kFinalists = 3;
// Less than that is noise, and the recommendation stands.
constexpr float kGain = 1.02f;
// Products before the first turn, where they are of a size that drives the card to its power limit: under load
// its clock is a sixth lower than cold, and others win (gate+up of 256 rows: 107 and 97 us warm, 91 both cold).
constexpr double kWarmSeconds = 0.4, kWarmFlops = 1e11;

class Activations {
 public:
  ~Activations() {
    cudaFree(x_);
    cudaFree(out_);
    cudaFree(scales_);
  }
  // Enough for every shape's products of at most so many rows; false: the card has no room for that.
  bool allocate(std::span<const TuneShape> shapes, int64_t most_rows) {
    int64_t x = 0, out_bytes = 0, scales = 1;
    for (const TuneShape& s : shapes)
      for (int64_t rows : s.rows) {
        if (rows > most_rows) continue;
        x = std::max(x, rows * s.k);
        if (s.factors != Factors::bf16)
          scales = std::max(scales, rows * ((s.k + kScaleBlock - 1) / kScaleBlock));
        out_bytes = std::max(out_bytes, rows * s.n * int64_t(dtype_size(s.out)));
      }
    x_elements_ = size_t(x);
    if (cudaMalloc(&x_, size_t(x) * 2) == cudaSuccess && cudaMalloc(&out_, size_t(out_bytes)) == cudaSuccess &&
        cudaMalloc(&scales_, size_t(scales) * sizeof(float)) == cudaSuccess) {
      CUDA_CHECK(cudaMemset(scales_, 0, size_t(scales) * sizeof(float)));
      return true;
    }
    cudaGetLastError();
    CUDA_CHECK(cudaFree(std::exchange(x_, nullptr)));
    CUDA_CHECK(cudaFree(std::exchange(out_, nullptr)));
    return false;
  }
  void* x() const { return x_; }
  size_t x_elements() const { return x_elements_; }
  void* out() const { return out_; }
  const float* scales() const { return static_cast<const float*>(scales_); }

 private:
  void* x_ = nullptr;
  void* out_ = nullptr;
  void* scales_ = nullptr;
  size_t x_elements_ = 0;
};

class Stopwatch {
 public:
  Stopwatch() {
    for (cudaEvent_t& e : events_) CUDA_CHECK(cudaEventCreate(&e));
  }
  ~Stopwatch() {
    for (cudaEvent_t e : events_) cudaEventDestroy(e);
  }
  void mark(int i, cudaStream_t stream) { CUDA_CHECK(cudaEventRecord(events_[size_t(i)], stream)); }
  float ms(int from, int to) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, events_[size_t(from)], events_[size_t(to)]));
    return ms;
  }

 private:
  std::array<cudaEvent_t, kCandidates + 1> events_{};
};

float median(std::vector<float> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class Tuner {
 public:
  Tuner(const Context& context, CublasLt& cublas, const Activations& activations)
      : context_(context), cublas_(cublas), activations_(activations) {}

  // The product of these rows by one of the shape's weights, the next one at each call.
  Product next(const TuneShape& shape, int64_t rows) {
    const size_t weight = next_weight_++ % shape.weights.size();
    const bool eight = shape.factors != Factors::bf16;
    return {{activations_.x(), eight ? DType::i8 : DType::bf16, rows, shape.k, shape.k},
            shape.weights[weight],
            nullptr,
            {activations_.out(), shape.out, rows, shape.n, shape.n},
            shape.factors,
            shape.scales.empty() ? nullptr : shape.scales[weight],
            activations_.scales()};
  }

  void warm(const TuneShape& shape, int64_t rows) {
    using Clock = std::chrono::steady_clock;
    if (2.0 * double(shape.n) * double(shape.k) * double(rows) < kWarmFlops) return;
    for (const auto end = Clock::now() + std::chrono::duration<double>(kWarmSeconds); Clock::now() < end;) {
      for (int i = 0; i < 8; ++i) cublas_.run(next(shape, rows));
      CUDA_CHECK(cudaStreamSynchronize(context_.stream));
    }
  }

  void time(const TuneShape& shape, int64_t rows, Tuned& sum) {
    const auto algorithms = cublas_.candidates(next(shape, rows), kCandidates);
    if (algorithms.size() < 2) return;
    const int calls = int(std::clamp<int64_t>(1024 / rows, 1, 8));
    std::vector<std::vector<float>> times(algorithms.size());
    std::vector<size_t> racing(algorithms.size());
    for (size_t c = 0; c < racing.size(); ++c) racing[c] = c;
    for (int turn = -1; turn < kTurns; ++turn) {  // the first loads the kernels
      stopwatch_.mark(0, context_.stream);
      for (size_t i = 0; i < racing.size(); ++i) {
        for (int call = 0; call < calls; ++call) cublas_.run_with(next(shape, rows), algorithms[racing[i]]);
        stopwatch_.mark(int(i) + 1, context_.stream);
      }
      CUDA_CHECK(cudaStreamSynchronize(context_.stream));
      for (size_t i = 0; turn >= 0 && i < racing.size(); ++i)
        times[racing[i]].push_back(stopwatch_.ms(int(i), int(i) + 1) / float(calls));
      std::rotate(racing.begin(), racing.begin() + 1, racing.end());
      if (turn + 1 == kFirstTurns) racing = finalists(times);
    }
    size_t best = 0;
    for (size_t c : racing)
      if (median(times[c]) * kGain < median(times[0]) && median(times[c]) < median(times[best])) best = c;
    cublas_.keep(next(shape, rows), algorithms[best]);
    sum.products += 1;
    sum.first_ms += double(median(times[0]));
    sum.best_ms += double(median(times[best]));
  }

 private:
  // The quickest so far, and the recommendation.
  static std::vector<size_t> finalists(const std::vector<std::vector<float>>& times) {
    std::vector<size_t> order(times.size());
    for (size_t c = 0; c < order.size(); ++c) order[c] = c;
    const auto quickest = [&](size_t c) { return *std::min_element(times[c].begin(), times[c].end()); };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return quickest(a) < quickest(b); });
    order.resize(std::min(order.size(), kFinalists));
    if (std::find(order.begin(), order.end(), 0u) == order.end()) order.back() = 0;
    return order;
  }

  const Context& context_;
  CublasLt& cublas_;
  const Activations& activations_;
  Stopwatch stopwatch_;
  size_t next_weight_ = 0;
};

}  // namespace

Tuned tune(const Context& context, CublasLt& cublas, std::span<const TuneShape> shapes) {
  int64_t most = 0;
  for (const TuneShape& s : shapes)
    if (!s.rows.empty()) most = std::max(most, s.rows.back());
  Tuned sum;
  Activations activations;
  while (most > 0 && !activations.allocate(shapes, most)) most /= 2;
  if (most == 0) return sum;
  // Zeros would need less power, and so run at a higher clock.
  fill_random(context, activations.x(), activations.x_elements(), 1, 1);
  Tuner tuner(context, cublas, activations);
  // The most rows first, which keep the card warm.
  bool cold = true;
  for (const TuneShape& s : shapes)
    for (size_t i = s.rows.size(); i-- > 0;) {
      if (s.rows[i] > most) continue;
      if (std::exchange(cold, false)) tuner.warm(s, s.rows[i]);
      tuner.time(s, s.rows[i], sum);
    }
  return sum;
}

}  // namespace sluice::cuda
