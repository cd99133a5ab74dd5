// The card behind the Backend interface: memory, streams, events and recorded steps. The ops are in the folders
// beside.
//
// Three streams: steps run on one; what the next step needs is brought in by another, meanwhile; blocks go to
// and from host memory on the third (host_copies.h). Everything that a recorded step needs to know of its batch
// lies in device memory, so a record is replayed for any lengths.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/log.h"
#include "tensor/backend.h"
#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/device/context.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/cuda/device/nvml.h"
#include "tensor/cuda/device/rates.h"
#include "tensor/cuda/experts/experts.h"
#include "tensor/cuda/host_copies.h"
#include "tensor/cuda/kv_layout.h"
#include "tensor/cuda/kv_tiers/kv_tiers.h"
#include "tensor/cuda/linear/int4_rows.h"
#include "tensor/cuda/linear/linear.h"
#include "tensor/cuda/load/weight_loader.h"
#include "tensor/cuda/needs.h"
#include "tensor/cuda/rows/rows.h"
#include "tensor/cuda/sampling/sampler.h"

namespace sluice {
namespace cuda {
namespace {

class CudaBackend final : public Backend {
 public:
  // `before`: the card as it was before this process used it.
  CudaBackend(const CudaOptions& options, std::optional<CardState> before)
      : options_(options), device_(options.device), before_(std::move(before)) {}
  ~CudaBackend() override;
  Status open();

  Status check(const DeviceNeeds& needs) const override { return check_needs(needs); }
  DeviceInfo info() const override;
  DeviceRates measure_rates() override;
  Buffer alloc(size_t bytes) override;
  Buffer alloc_host(size_t bytes) override;
  void free(void* data, size_t bytes) override;
  void copy_in(void* device, const void* host, size_t bytes) override;
  void copy_out(void* host, const void* device, size_t bytes) override;
  Status reserve(const WorkspaceShape& shape) override;
  size_t copies_bytes(size_t weights, size_t four_bits_as_bf16) const override {
    return four_bits_as_bf16 <= room_for_copies(weights) ? four_bits_as_bf16 : 0;
  }

  DType activation_dtype() const override { return DType::bf16; }
  DType kv_dtype() const override { return DType::bf16; }
  bool has_kv_tier(KvTier) const override { return true; }
  bool has_sparse_decode() const override { return true; }
  size_t kv_block_bytes(const KvGeometry& g) const override { return slot_bytes(g); }
  size_t kv_workspace_bytes(const WorkspaceShape& shape) const override {
    return cuda::kv_workspace_bytes(shape);
  }
  Buffer alloc_pool(size_t bytes, const KvGeometry& geometry) override;
  Result<Weight> pack(std::span<const PackSource> sources) override;
  WeightFormat kept_format(const WeightFormat& format, int64_t rows, int64_t cols) const override {
    return cuda::kept_format(format, rows, cols);
  }

  void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) override {
    attention_->begin_step(batch, geometry, heads);
  }
  void embed(const EmbedArgs& a) override {
    if (a.table.parts[0].format.element == WeightElement::int4) return int4_embed(context_, a);
    cuda::embed(context_, a);
  }
  void rms_norm(const RmsNormArgs& a) override { cuda::rms_norm(context_, a, copy_of(a.out)); }
  void add_rms_norm(const AddRmsNormArgs& a) override {
    cuda::add_rms_norm(context_, a, a.weight ? copy_of(a.out) : nullptr);
  }
  void linear(const LinearArgs& a) override { linear_->run(a); }
  void rope_store_kv(const RopeStoreArgs& a) override { cuda::rope_store_kv(context_, a); }
  void attention(const AttentionArgs& a) override {
    linear_->written(a.out);
    attention_->run(a);
  }
  void act_mul(const ActMulArgs& a) override {
    const QuantizedRows* copy = a.out.cols <= kMostActMulColumns ? copy_of(a.out) : written(a.out);
    copy ? act_mul_quantized(context_, a, *copy, !linear_->only_copy_wanted(a.out))
         : cuda::act_mul(context_, a);
  }
  void experts(const ExpertsArgs& a) override {
    linear_->written(a.out);
    experts_->run(a);
  }
  void gather_rows(const Tensor& x, const int32_t* index, const Tensor& out) override {
    linear_->written(out);
    cuda::gather_rows(context_, x, index, out);
  }
  void sample(const SampleArgs& a) override { sampler_->run(a); }
  void copy_blocks(std::byte* pool, size_t block_bytes,
                   std::span<const std::pair<int32_t, int32_t>> from_to) override;
  void move_blocks(const MoveBlocksArgs& a) override { cuda::move_blocks(context_, a); }
  void copy_host(const HostCopiesArgs& a) override { host_copies_.want(a); }
  void finish_step() override { CUDA_CHECK(cudaStreamSynchronize(context_.stream)); }

  void stage(int slot, std::span<const Upload> uploads, std::span<const SampleRow> rows,
             int padded_rows) override;
  void open_step(int slot) override;
  void submit_step(int slot) override;
  bool step_done(int slot) override;
  StepTimes step_times(int slot) override;

  bool can_record() const override { return true; }
  void begin_recording(int key) override;
  void end_recording(int key) override;
  bool replay(int key) override;

 private:
  // The current card is a property of the thread, and a server loads in one, runs in another and ends in a
  // third.
  void use_card() const { CUDA_CHECK(cudaSetDevice(device_)); }
  // Where a kernel that writes `out` is to write it quantized too, for the eight-bit products behind it; null:
  // nowhere.
  const QuantizedRows* copy_of(const Tensor& out) {
    return options_.fuse_quantization ? linear_->copy_wanted(out) : written(out);
  }
  const QuantizedRows* written(const Tensor& out) {
    linear_->written(out);
    return nullptr;
  }
  Buffer allocate(size_t bytes);
  size_t room_for_copies(size_t weights_to_come) const;

  // Times of a step. There are more than steps in flight, so that the end of the step before is still known
  // when a step's times are read.
  struct Marks {
    cudaEvent_t started = nullptr, ended = nullptr;
    bool used = false;
  };
  static constexpr int kMarks = 2 * kStepsInFlight;

  const CudaOptions options_;
  const int device_;
  const std::optional<CardState> before_;
  Context context_;
  cudaStream_t copy_stream_ = nullptr;
  std::array<cudaEvent_t, kStepsInFlight> staging_{}, staged_{};  // staging_: with time_copies alone
  std::array<Marks, kMarks> marks_{};
  std::array<int, kStepsInFlight> mark_of_slot_{};
  int next_mark_ = 0;
  HostCopies host_copies_;
  std::unordered_map<int, cudaGraphExec_t> recorded_;
  std::unordered_set<void*> pinned_;
  bool reserved_ = false;

  std::unique_ptr<Linear> linear_;
  std::unique_ptr<Attention> attention_ = make_attention();
  std::unique_ptr<Experts> experts_;
  std::unique_ptr<Sampler> sampler_ = make_sampler();
  std::unique_ptr<WeightLoader> loader_;
};

Status CudaBackend::open() {
  use_card();
  for (cudaStream_t* stream : {&context_.stream, &copy_stream_})
    if (const cudaError_t e = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking); e != cudaSuccess)
      return Error{ErrorCode::kUnsupported,
                   fmt::format("cuda:{} cannot be used ({})", device_, cudaGetErrorString(e)), "device"};
  for (cudaEvent_t& e : staged_)
    CUDA_CHECK(cudaEventCreateWithFlags(&e, options_.time_copies ? cudaEventDefault : cudaEventDisableTiming));
  if (options_.time_copies)
    for (cudaEvent_t& e : staging_) CUDA_CHECK(cudaEventCreate(&e));
  for (Marks& m : marks_) {
    CUDA_CHECK(cudaEventCreate(&m.started));
    CUDA_CHECK(cudaEventCreate(&m.ended));
  }
  host_copies_.open();
  CUDA_CHECK(cudaDeviceGetAttribute(&context_.multiprocessors, cudaDevAttrMultiProcessorCount, device_));
  auto linear = make_linear(context_, *this);
  if (!linear) return std::move(linear).error();
  linear_ = std::move(*linear);
  auto experts = make_experts(context_, *this);
  if (!experts) return std::move(experts).error();
  experts_ = std::move(*experts);
  loader_ = make_weight_loader(context_, *this);
  return {};
}

CudaBackend::~CudaBackend() {
  if (!context_.stream) return;
  cudaSetDevice(device_);
  cudaStreamSynchronize(context_.stream);
  for (auto& [key, exec] : recorded_) cudaGraphExecDestroy(exec);
  // These own buffers of this backend, which free() still serves here.
  loader_.reset();
  sampler_.reset();
  attention_.reset();
  experts_.reset();
  linear_.reset();
  for (cudaEvent_t e : staged_) cudaEventDestroy(e);
  if (options_.time_copies)
    for (cudaEvent_t e : staging_) cudaEventDestroy(e);
  for (Marks& m : marks_) cudaEventDestroy(m.started), cudaEventDestroy(m.ended);
  cudaStreamDestroy(copy_stream_);
  cudaStreamDestroy(context_.stream);
}

DeviceInfo CudaBackend::info() const {
  use_card();
  cudaDeviceProp p;
  CUDA_CHECK(cudaGetDeviceProperties(&p, device_));
  DeviceInfo info;
  info.name = p.name;
  info.instruction_set = fmt::format("sm_{}{}", p.major, p.minor);
  CUDA_CHECK(cudaMemGetInfo(&info.memory_bytes, &info.memory_total));
  if (before_) info.memory_others = before_->used_bytes, info.state = describe(*before_);
  return info;
}

DeviceRates CudaBackend::measure_rates() {
  constexpr size_t kReadBytes = size_t{4} << 30;
  constexpr int64_t kSide = 8192;
  constexpr int kRounds = 5, kProducts = 4;
  constexpr size_t kMatrixBytes = size_t(kSide * kSide) * 2;
  DeviceRates rates;
  const Buffer memory = alloc(kReadBytes);
  if (!memory.data()) return rates;
  fill_random(context_, memory.data(), kReadBytes / 2, 1, 1);
  rates.read_bytes_s = measure_read_rate(context_, memory.data(), kReadBytes);

  Weight weight{.rows = kSide, .cols = kSide, .parts = {}};
  weight.parts.push_back({0, kSide, {WeightElement::bf16}, alloc(kMatrixBytes)});
  if (!weight.parts[0].data.data()) return rates;
  fill_random(context_, weight.parts[0].data.data(), kMatrixBytes / 2, 2, 1);
  const Tensor x{memory.data(), DType::bf16, kSide, kSide, kSide},
      out{memory.as<std::byte>() + kMatrixBytes, DType::bf16, kSide, kSide, kSide};
  float best_ms = 1e30f;
  for (int round = 0; round < kRounds; ++round) {
    CUDA_CHECK(cudaEventRecord(marks_[0].started, context_.stream));
    for (int i = 0; i < kProducts; ++i) linear_->run({x, weight, nullptr, out});
    CUDA_CHECK(cudaEventRecord(marks_[0].ended, context_.stream));
    CUDA_CHECK(cudaEventSynchronize(marks_[0].ended));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, marks_[0].started, marks_[0].ended));
    best_ms = std::min(best_ms, ms);
  }
  rates.matrix_ops_s =
      kProducts * 2.0 * double(kSide) * double(kSide) * double(kSide) / (double(best_ms) * 1e-3);
  return rates;
}

Buffer CudaBackend::alloc(size_t bytes) {
  CHECK(!reserved_, "device memory is decided before the server is ready");
  return allocate(bytes);
}

Buffer CudaBackend::allocate(size_t bytes) {
  if (bytes == 0) return {};
  use_card();
  void* p = nullptr;
  if (cudaMalloc(&p, bytes) != cudaSuccess) {
    cudaGetLastError();  // an answer, not an error state
    return {};
  }
  CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, context_.stream));
  CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  return Buffer(this, p, bytes);
}

Buffer CudaBackend::alloc_host(size_t bytes) {
  if (bytes == 0) return {};
  use_card();
  void* p = nullptr;
  if (cudaHostAlloc(&p, bytes, cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::fill_n(static_cast<std::byte*>(p), bytes, std::byte{});
  pinned_.insert(p);
  return Buffer(this, p, bytes);
}

void CudaBackend::free(void* data, size_t) {
  use_card();
  if (pinned_.erase(data))
    CUDA_CHECK(cudaFreeHost(data));
  else
    CUDA_CHECK(cudaFree(data));
}

void CudaBackend::copy_in(void* device, const void* host, size_t bytes) {
  use_card();
  CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, context_.stream));
  CUDA_CHECK(cudaStreamSynchronize(context_.stream));
}
void CudaBackend::copy_out(void* host, const void* device, size_t bytes) {
  use_card();
  CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, context_.stream));
  CUDA_CHECK(cudaStreamSynchronize(context_.stream));
}

// The last of all: it takes what weights and workspaces leave.
Buffer CudaBackend::alloc_pool(size_t bytes, const KvGeometry& geometry) {
  Buffer pool = allocate(bytes + attention_->give_back_tail());
  if (pool.data()) attention_->bind_pool(pool.as<std::byte>(), bytes, geometry);
  return pool;
}

Result<Weight> CudaBackend::pack(std::span<const PackSource> sources) {
  use_card();
  auto weight = loader_->pack(sources);
  if (weight) linear_->prepare(*weight);
  return weight;
}

// A fifth of what would else be the cache's.
size_t CudaBackend::room_for_copies(size_t weights_to_come) const {
  if (!options_.bf16_copies) return 0;
  constexpr size_t kShare = 5;
  const DeviceInfo card = info();
  const size_t used = card.memory_total - std::min(card.memory_total, card.memory_bytes) + weights_to_come;
  const auto allowed = size_t(double(card.memory_total) * options_.memory_fraction);
  return (allowed - std::min(allowed, used)) / kShare;
}

Status CudaBackend::reserve(const WorkspaceShape& shape) {
  use_card();
  loader_->finish();
  linear_->copy(room_for_copies(0));
  linear_->tune(shape);
  if (Status reserved = linear_->reserve(shape); !reserved) return reserved;
  if (Status reserved = attention_->reserve(shape, context_, *this); !reserved) return reserved;
  if (Status reserved = sampler_->reserve(shape, context_, *this); !reserved) return reserved;
  reserved_ = true;
  return {};
}

void CudaBackend::copy_blocks(std::byte* pool, size_t bytes,
                              std::span<const std::pair<int32_t, int32_t>> from_to) {
  use_card();
  for (auto [from, to] : from_to)
    CUDA_CHECK(cudaMemcpyAsync(pool + size_t(to) * bytes, pool + size_t(from) * bytes, bytes,
                               cudaMemcpyDeviceToDevice, context_.stream));
}

void CudaBackend::stage(int slot, std::span<const Upload> uploads, std::span<const SampleRow> rows,
                        int padded_rows) {
  CHECK(slot >= 0 && slot < kStepsInFlight);
  use_card();  // the first call of a step
  if (options_.time_copies) CUDA_CHECK(cudaEventRecord(staging_[size_t(slot)], copy_stream_));
  for (const Upload& u : uploads) {
    if (u.rows == 1)
      CUDA_CHECK(cudaMemcpyAsync(u.device, u.host, u.row_bytes, cudaMemcpyHostToDevice, copy_stream_));
    else if (u.rows > 1)
      CUDA_CHECK(cudaMemcpy2DAsync(u.device, u.device_pitch, u.host, u.host_pitch, u.row_bytes, u.rows,
                                   cudaMemcpyHostToDevice, copy_stream_));
  }
  sampler_->stage(slot, rows, padded_rows, copy_stream_);
  CUDA_CHECK(cudaEventRecord(staged_[size_t(slot)], copy_stream_));
}

void CudaBackend::open_step(int slot) {
  Marks& marks = marks_[size_t(next_mark_)];
  mark_of_slot_[size_t(slot)] = next_mark_;
  next_mark_ = (next_mark_ + 1) % kMarks;
  CUDA_CHECK(cudaStreamWaitEvent(context_.stream, staged_[size_t(slot)]));
  host_copies_.hold_back(context_.stream);
  CUDA_CHECK(cudaEventRecord(marks.started, context_.stream));
}

void CudaBackend::submit_step(int slot) {
  const int at = mark_of_slot_[size_t(slot)];
  Marks &marks = marks_[size_t(at)], &before = marks_[size_t((at + kMarks - 1) % kMarks)];
  CUDA_CHECK(cudaEventRecord(marks.ended, context_.stream));
  marks.used = true;
  host_copies_.enqueue(slot, before.used ? before.ended : nullptr);
}

bool CudaBackend::step_done(int slot) {
  const cudaError_t state = cudaEventQuery(marks_[size_t(mark_of_slot_[size_t(slot)])].ended);
  if (state == cudaErrorNotReady) return false;
  CUDA_CHECK(state);
  return host_copies_.done(slot);
}

StepTimes CudaBackend::step_times(int slot) {
  const auto ns = [](cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    return int64_t(double(ms) * 1e6);
  };
  const int at = mark_of_slot_[size_t(slot)];
  const Marks &marks = marks_[size_t(at)], &before = marks_[size_t((at + kMarks - 1) % kMarks)];
  StepTimes times{.busy_ns = ns(marks.started, marks.ended),
                  .idle_ns = before.used ? std::max<int64_t>(0, ns(before.ended, marks.started)) : 0,
                  .host_copy_ns = host_copies_.ns(slot)};
  if (options_.time_copies) {
    const auto back = int64_t(double(times.host_copy_ns) * host_copies_.to_host_share(slot));
    times.to_host_ns = back;
    times.to_device_ns = ns(staging_[size_t(slot)], staged_[size_t(slot)]) + times.host_copy_ns - back;
  }
  return times;
}

void CudaBackend::begin_recording(int) {
  CUDA_CHECK(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal));
}

void CudaBackend::end_recording(int key) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(context_.stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaGraphUpload(exec, context_.stream));
  CHECK(recorded_.emplace(key, exec).second, "recorded twice");
  CUDA_CHECK(cudaGraphLaunch(exec, context_.stream));
}

bool CudaBackend::replay(int key) {
  const auto found = recorded_.find(key);
  if (found == recorded_.end()) return false;
  CUDA_CHECK(cudaGraphLaunch(found->second, context_.stream));
  return true;
}

}  // namespace
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options) {
  const auto absent = [](std::string why) { return Error{ErrorCode::kNotFound, std::move(why), "device"}; };
  const auto unusable = [](std::string why) {
    return Error{ErrorCode::kUnsupported, std::move(why), "device"};
  };
  constexpr int kDriver = CUDART_VERSION / 1000 * 1000;  // of a major version, any driver runs any runtime
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return absent("no NVIDIA driver is installed here");
  if (driver < kDriver)
    return unusable(
        fmt::format("the NVIDIA driver supports CUDA {}.{}, but this program needs {}.{}: update the "
                    "driver",
                    driver / 1000, driver % 1000 / 10, kDriver / 1000, kDriver % 1000 / 10));
  if (const cudaError_t e = cudaGetDeviceCount(&count); e == cudaErrorNoDevice || (e == cudaSuccess && !count))
    return absent("the NVIDIA driver shows no card");
  else if (e != cudaSuccess)
    return unusable(fmt::format("the NVIDIA driver names no card ({})", cudaGetErrorString(e)));
  if (options.device < 0 || options.device >= count)
    return absent(fmt::format("there is no cuda:{}: this machine has {} card{}, cuda:0{}", options.device,
                              count, count == 1 ? "" : "s",
                              count == 1 ? "" : fmt::format(" to cuda:{}", count - 1)));
  cudaDeviceProp p;
  if (const cudaError_t e = cudaGetDeviceProperties(&p, options.device); e != cudaSuccess)
    return unusable(fmt::format("cuda:{} does not answer ({})", options.device, cudaGetErrorString(e)));
  if (p.major != 9)
    return unusable(fmt::format("cuda:{} is a {} (sm_{}{}); the kernels are made for Hopper (sm_90)",
                                options.device, p.name, p.major, p.minor));
  char bus_id[32] = {};
  cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, options.device);
  auto before = cuda::card_state(bus_id);
  DeviceInfo others;
  if (before) others.memory_others = before->used_bytes;
  const auto refused = [&](cudaError_t e, const char* why) {
    return unusable(fmt::format("cuda:{} cannot be used ({}){}{}", options.device, cudaGetErrorString(e), why,
                                others_on_card(others)));
  };
  if (const cudaError_t e = cudaSetDevice(options.device); e != cudaSuccess)
    return refused(e, e == cudaErrorMemoryAllocation ? "" : ": is another program holding it exclusively?");
  if (const cudaError_t e = cudaFree(nullptr); e != cudaSuccess) return refused(e, "");
  auto backend = std::make_unique<cuda::CudaBackend>(options, std::move(before));
  if (Status opened = backend->open(); !opened) return std::move(opened).error();
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace sluice
