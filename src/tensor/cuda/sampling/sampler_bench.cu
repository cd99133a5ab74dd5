// Times of sampling inside a graph, of rows that lie beyond the L2 between calls where they would in a step.
#include <cstdio>
#include <cstdlib>

#include "tensor/cuda/sampling/sampler.h"
#include "tensor/cuda/testing/device.h"
#include "tensor/cuda/testing/memory_backend.h"

namespace sluice::cuda::test {
namespace {

__global__ void fill_normal(float* x, int64_t n, float scale) {
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t h = uint64_t(i) * 0x9E3779B97F4A7C15u;  // splitmix64
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    h ^= h >> 31;
    const float a = (float(uint32_t(h)) + 1) * 0x1p-32f, b = float(uint32_t(h >> 32)) * 0x1p-32f;
    x[i] = scale * sqrtf(-2 * logf(a)) * cosf(6.2831853f * b);
  }
}

enum class Wish { greedy, logprobs, plain, top_p, top_k, both, min_p, penalties, mixed };
const char* name_of(Wish w) {
  static const char* names[] = {"greedy",     "greedy+logprobs 5", "temperature",
                                "top-p 0.9",  "top-k 40",          "top-k 40 top-p 0.9",
                                "min-p 0.05", "penalties (2,000)", "mixed"};
  return names[int(w)];
}

SampleRow row_of(Wish w, int i, const std::vector<int32_t>& history) {
  SampleRow r;
  r.slot = i;
  r.seed = uint64_t(i) + 1;
  r.counter = 7;
  if (w == Wish::mixed) w = Wish(i % 7);
  if (w == Wish::logprobs) r.top_logprobs = 5;
  if (w != Wish::greedy && w != Wish::logprobs) r.temperature = 1;
  if (w == Wish::top_p || w == Wish::both) r.top_p = 0.9f;
  if (w == Wish::top_k || w == Wish::both) r.top_k = 40;
  if (w == Wish::min_p) r.min_p = 0.05f;
  if (w == Wish::penalties) {
    r.history = history.data(), r.history_prompt = 1000, r.history_total = int(history.size());
    r.frequency_penalty = 0.5f;
  }
  return r;
}

void bench(Sampler& sampler, const float* logits, int64_t elements, int rows, int vocab, float sigma, Wish wish,
           SampleResult* results, int32_t* last_ids, const std::vector<int32_t>& history) {
  std::vector<SampleRow> wishes;
  for (int i = 0; i < rows; ++i) wishes.push_back(row_of(wish, i, history));
  sampler.stage(0, wishes, rows, context().stream);
  const int64_t one = int64_t(rows) * vocab;
  const int sets = int(std::max<int64_t>(1, std::min<int64_t>(elements / one, 64)));
  const float ms = graph_ms(32, 10, [&](int i) {
    SampleArgs a{};
    a.logits = Tensor{const_cast<float*>(logits) + int64_t(i % sets) * one, DType::f32, rows, vocab, vocab};
    a.results = {results, size_t(rows)};
    a.last_ids = last_ids;
    sampler.run(a);
  });
  const double floor_us = double(one) * 4 / 4.56e6;
  std::printf("R %3d V %6d sigma %.1f %-20s %7.2f us  floor %6.2f  %5.1f %%\n", rows, vocab, sigma,
              name_of(wish), ms * 1e3, floor_us, 100 * floor_us / (ms * 1e3));
}

int run(bool short_run) {
  MemoryBackend backend;
  constexpr int kRows = 256;
  DeviceBytes last(kRows * 4);
  Buffer results = backend.alloc_host(kRows * sizeof(SampleResult));
  std::vector<int32_t> history(2000);
  for (size_t i = 0; i < history.size(); ++i) history[i] = int32_t(i * 37 % 100000);
  for (int vocab : {128256, 49152, 262144}) {
    const int64_t elements = int64_t(kRows) * vocab * 2;
    DeviceBytes logits(size_t(elements) * 4);
    auto sampler = make_sampler();
    WorkspaceShape shape{.max_tokens = kRows,
                         .max_sequences = kRows,
                         .max_context = 4096,
                         .vocab = vocab,
                         .max_logit_rows = kRows};
    if (!sampler->reserve(shape, context(), backend).ok()) return 1;
    for (float sigma : {1.0f, 4.0f}) {
      fill_normal<<<1024, 256, 0, context().stream>>>(logits.as<float>(), elements, sigma);
      wait();
      for (int rows : {1, 8, 32, 128, 256}) {
        if (short_run && rows != 1 && rows != 128) continue;
        for (int w = 0; w <= int(Wish::mixed); ++w) {
          if (vocab != 128256 && Wish(w) != Wish::greedy && Wish(w) != Wish::top_p && Wish(w) != Wish::mixed)
            continue;
          bench(*sampler, logits.as<float>(), elements, rows, vocab, sigma, Wish(w), results.as<SampleResult>(),
                last.as<int32_t>(), history);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace sluice::cuda::test

int main(int argc, char**) { return sluice::cuda::test::run(argc > 1); }
