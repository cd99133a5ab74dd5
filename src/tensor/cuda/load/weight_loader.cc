#include "tensor/cuda/load/weight_loader.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "tensor/cuda/device/cuda_check.h"
#include "tensor/cuda/linear/int4_pack.h"
#include "tensor/cuda/linear/int4_random.h"
#include "tensor/cuda/load/decode.h"
#include "tensor/cuda/rows/quantized_weight.h"
#include "tensor/cuda/rows/rows.h"

namespace sluice::cuda {
namespace {

constexpr uintptr_t kPage = 4096;

// Consecutive rows that one thread decodes into one buffer and sends with one copy.
struct Piece {
  const Backend::PackSource* source;
  int64_t first, count;     // of the source's rows in order
  int64_t destination_row;  // of the weight
};

int64_t stored_index(const Backend::PackSource& s, int64_t row) {
  return s.row_order.empty() ? row : s.row_order[size_t(row)];
}

// Has the kernel map the pages of a piece at once (and read them, if they are not in memory), rather than fault
// by fault. Only advice: what it cannot do, the faults will.
void populate(const Piece& piece) {
  uintptr_t begin = UINTPTR_MAX, end = 0, bytes = 0;
  for (int64_t r = 0; r < piece.count; ++r) {
    const auto row = piece.source->rows->stored_row(stored_index(*piece.source, piece.first + r));
    const auto at = reinterpret_cast<uintptr_t>(row.data());
    if (row.empty()) return;
    begin = std::min(begin, at), end = std::max(end, at + row.size()), bytes += row.size();
  }
  if (end - begin > 2 * bytes) return;  // scattered rows
  begin &= ~(kPage - 1);
#ifdef MADV_POPULATE_READ
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
#endif
}

WeightFormat kept_together(std::span<const Backend::PackSource> sources) {
  constexpr WeightFormat kBf16{WeightElement::bf16, 0, false};
  std::optional<WeightFormat> all;
  for (const Backend::PackSource& s : sources) {
    const WeightFormat kept = kept_format(s.rows->format(), s.rows->rows(), s.rows->cols());
    if (s.of_expert || (all && kept != *all)) return kBf16;
    if (factors_of(kept) == Factors::fp8_blocks && !s.row_order.empty()) return kBf16;
    all = kept;
  }
  return *all;
}

// As what a source stays 4-bit, or else bf16.
WeightFormat kept_int4(const Backend::PackSource& s) {
  const WeightFormat kept = kept_format(s.rows->format(), s.rows->rows(), s.rows->cols());
  return kept.element == WeightElement::int4 && !s.of_expert ? kept : WeightFormat{WeightElement::bf16};
}

class Loader final : public WeightLoader {
 public:
  Loader(const Context& context, Backend& backend, const WeightLoaderOptions& options)
      : context_(context), backend_(backend), options_(options) {
    if (options_.threads == 0) options_.threads = std::clamp(int(std::thread::hardware_concurrency()), 1, 16);
  }
  ~Loader() override { finish(); }

  Result<Weight> pack(std::span<const Backend::PackSource> sources) override;
  void finish() override;

 private:
  struct Slot {  // a pinned buffer and when its copy has been done
    std::byte* data = nullptr;
    cudaEvent_t copied = nullptr;
  };

  Status start();
  void work(std::span<Slot> slots);
  void run_pieces(std::span<Slot> slots, size_t& turn, DecodedRow& scratch);
  void decode(const Piece& piece, int64_t row, DecodedRow& scratch, std::byte* out);
  Result<Weight::Part> pack_part(std::span<const Backend::PackSource> sources, const WeightFormat& kept);
  std::vector<Piece> cut(std::span<const Backend::PackSource> sources, int64_t cols);
  std::vector<Piece> cut_int4(std::span<const Backend::PackSource> sources);
  void pack_panels(const Piece& piece, std::byte* out, DecodedRow& scratch);
  void make_up(const RowSource::Synthetic& synthetic, int64_t row, int64_t rows, int64_t cols);
  Error out_of_memory(size_t bytes) const;

  const Context& context_;
  Backend& backend_;
  WeightLoaderOptions options_;
  bool finished_ = false;
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t sent_ = nullptr;
  std::byte* pinned_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;

  // The part at hand. Written by pack under mutex_ while no thread works; pieces are taken by next_.
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  uint64_t round_ = 0;  // counts parts
  bool stop_ = false;
  size_t working_ = 0;
  std::vector<Piece> pieces_;
  std::byte* target_ = nullptr;
  size_t row_bytes_ = 0;
  Factors factors_ = Factors::bf16;  // as which it is kept
  std::optional<QuantizedLayout> layout_;
  std::vector<float> scales_;  // of eight bits, as they will lie on the card; each row's by whoever decodes it
  std::optional<Int4Layout> int4_;          // where the part stays 4-bit: pieces are whole panels
  std::atomic<bool> int4_refused_ = false;  // a row did not suit the layout
  std::atomic<size_t> next_ = 0;
};

Status Loader::start() {
  CUDA_CHECK(cudaGetDevice(&device_));
  const size_t count = size_t(options_.threads) * size_t(options_.buffers_per_thread);
  void* pinned = nullptr;
  if (cudaHostAlloc(&pinned, count * options_.buffer_bytes, cudaHostAllocPortable) != cudaSuccess) {
    cudaGetLastError();
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("the system gives no {} MiB of pinned memory for loading: free host memory, or "
                             "raise the limit of locked memory (ulimit -l)",
                             count * options_.buffer_bytes >> 20)};
  }
  pinned_ = static_cast<std::byte*>(pinned);
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CUDA_CHECK(cudaEventCreateWithFlags(&sent_, cudaEventDisableTiming));
  slots_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    slots_[i].data = pinned_ + i * options_.buffer_bytes;
    CUDA_CHECK(cudaEventCreateWithFlags(&slots_[i].copied, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  try {
    for (int t = 0; t < options_.threads; ++t)
      threads_.emplace_back([this, t] {
        const size_t each = size_t(options_.buffers_per_thread);
        work(std::span(slots_).subspan(size_t(t) * each, each));
      });
  } catch (const std::system_error& e) {
    if (threads_.empty())
      return Error{ErrorCode::kResourceExhausted, fmt::format("no thread can be started: {}", e.what())};
  }
  return {};
}

void Loader::work(std::span<Slot> slots) {
  CUDA_CHECK(cudaSetDevice(device_));
  DecodedRow scratch;
  size_t turn = 0;
  for (uint64_t seen = 0;;) {
    std::unique_lock lock(mutex_);
    begin_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    run_pieces(slots, turn, scratch);
    lock.lock();
    if (--working_ == 0) end_.notify_one();
  }
}

// A slot's event has been recorded by its last copy, or never: then it counts as done.
void Loader::run_pieces(std::span<Slot> slots, size_t& turn, DecodedRow& scratch) {
  for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < pieces_.size();) {
    const Piece& piece = pieces_[i];
    const Slot& slot = slots[turn++ % slots.size()];
    CUDA_CHECK(cudaEventSynchronize(slot.copied));
    size_t bytes_before = size_t(piece.destination_row) * row_bytes_, bytes = size_t(piece.count) * row_bytes_;
    if (int4_) {
      const auto panel = size_t(int4_->panel_bytes());
      pack_panels(piece, slot.data, scratch);
      bytes_before = size_t(piece.destination_row / kPanelRows) * panel;
      bytes = size_t((piece.count + kPanelRows - 1) / kPanelRows) * panel;
    } else {
      populate(piece);
      for (int64_t r = 0; r < piece.count; ++r) decode(piece, r, scratch, slot.data + size_t(r) * row_bytes_);
    }
    CUDA_CHECK(cudaMemcpyAsync(target_ + bytes_before, slot.data, bytes, cudaMemcpyHostToDevice, stream_));
    CUDA_CHECK(cudaEventRecord(slot.copied, stream_));
  }
}

// The piece's row, as it is kept.
void Loader::decode(const Piece& piece, int64_t row, DecodedRow& scratch, std::byte* out) {
  const int64_t stored = stored_index(*piece.source, piece.first + row), place = piece.destination_row + row;
  if (factors_ == Factors::bf16)
    return decode_bf16(*piece.source->rows, stored, scratch, reinterpret_cast<uint16_t*>(out));
  piece.source->rows->decode(stored, scratch);
  CHECK(scratch.q.size() == row_bytes_);
  std::memcpy(out, scratch.q.data(), row_bytes_);
  if (factors_ != Factors::fp8_blocks)
    scales_[size_t(place)] = scratch.scale[0];
  else if (place % kScaleBlock == 0)
    std::copy(scratch.scale.begin(), scratch.scale.end(),
              scales_.begin() + place / kScaleBlock * layout_->scale_stride);
}

// Made up on the card: bf16, and then quantized by rows where eight bits are kept.
void Loader::make_up(const RowSource::Synthetic& synthetic, int64_t row, int64_t rows, int64_t cols) {
  std::byte* to = target_ + size_t(row) * row_bytes_;
  if (factors_ == Factors::bf16)
    return fill_random(context_, to, size_t(rows * cols), synthetic.seed, synthetic.deviation);
  void* wide = nullptr;
  CUDA_CHECK(cudaMallocAsync(&wide, size_t(rows * cols) * sizeof(uint16_t), context_.stream));
  fill_random(context_, wide, size_t(rows * cols), synthetic.seed, synthetic.deviation);
  auto* scales = reinterpret_cast<float*>(target_ + layout_->scales_at) + row;
  quantize_rows(context_, {wide, DType::bf16, rows, cols, cols}, {to, scales, factors_, rows, cols, rows});
  CUDA_CHECK(cudaFreeAsync(wide, context_.stream));
}

// A piece of 4-bit rows may go on into the sources behind its own.
void Loader::pack_panels(const Piece& piece, std::byte* out, DecodedRow& scratch) {
  const auto panel_bytes = size_t(int4_->panel_bytes());
  std::memset(out, 0, size_t((piece.count + kPanelRows - 1) / kPanelRows) * panel_bytes);
  const Backend::PackSource* source = piece.source;
  int64_t row = piece.first;
  for (int64_t r = 0; r < piece.count && !int4_refused_.load(std::memory_order_relaxed); ++r, ++row) {
    while (row >= source->rows->rows()) row -= source->rows->rows(), ++source;
    const WeightFormat format = source->rows->format();
    source->rows->decode(stored_index(*source, row), scratch);
    if (!format.has_min) scratch.min.clear();
    if (!pack_int4_row(*int4_, scratch, format.group, int(r % kPanelRows),
                       out + size_t(r / kPanelRows) * panel_bytes))
      int4_refused_ = true;
  }
}

// Made up on the card where all of the part is.
std::vector<Piece> Loader::cut_int4(std::span<const Backend::PackSource> sources) {
  const bool made_up = std::all_of(sources.begin(), sources.end(),
                                   [](const auto& s) { return s.rows->synthetic().has_value(); });
  if (made_up) {
    const auto synthetic = sources[0].rows->synthetic();
    int4_random(context_, target_, *int4_, synthetic->seed, synthetic->deviation);
    return {};
  }
  std::vector<Piece> pieces;
  const int64_t rows_each = int64_t(options_.buffer_bytes) / int4_->panel_bytes() * kPanelRows;
  CHECK(rows_each > 0, "a panel beyond a loading buffer");
  const Backend::PackSource* source = sources.data();
  int64_t before = 0;  // rows of the sources before
  for (int64_t row = 0; row < int4_->rows; row += rows_each) {
    while (row - before >= source->rows->rows()) before += source->rows->rows(), ++source;
    pieces.push_back({source, row - before, std::min(rows_each, int4_->rows - row), row});
  }
  return pieces;
}

// Synthetic sources are filled here.
std::vector<Piece> Loader::cut(std::span<const Backend::PackSource> sources, int64_t cols) {
  std::vector<Piece> pieces;
  const int64_t rows_each = int64_t(options_.buffer_bytes / row_bytes_);
  CHECK(rows_each > 0, "a row beyond a loading buffer");
  int64_t row = 0;
  for (const Backend::PackSource& s : sources) {
    const int64_t rows = s.rows->rows();
    if (const auto synthetic = s.rows->synthetic())
      make_up(*synthetic, row, rows, cols);
    else
      for (int64_t r = 0; r < rows; r += rows_each)
        pieces.push_back({&s, r, std::min(rows_each, rows - r), row + r});
    row += rows;
  }
  return pieces;
}

Error Loader::out_of_memory(size_t bytes) const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {
      ErrorCode::kResourceExhausted,
      fmt::format("the card is full: this weight is short of {:.2f} GiB ({:.2f} of {:.1f} GiB are free{}), and "
                  "more may follow; use a smaller model or another card (--device cuda:N), or end the "
                  "programs that hold memory there (nvidia-smi names them)",
                  gib(bytes > free ? bytes - free : bytes), gib(free), gib(total),
                  others_on_card(backend_.info()))};
}

Result<Weight> Loader::pack(std::span<const Backend::PackSource> sources) {
  CHECK(!finished_ && !sources.empty());
  Weight weight;
  weight.cols = sources[0].rows->cols();
  for (const Backend::PackSource& s : sources) {
    if (s.rows->cols() != weight.cols)
      return Error{ErrorCode::kInvalidArgument, "matrices packed together differ in columns"};
    CHECK(s.row_order.empty() || int64_t(s.row_order.size()) == s.rows->rows());
    weight.rows += s.rows->rows();
  }
  if (weight.cols <= 0 || weight.cols % 8 != 0)
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("its {} columns are not a multiple of 8, which the CUDA kernels need; use --device "
                    "cpu for this model",
                    weight.cols)};
  if (threads_.empty())
    if (Status started = start(); !started) return std::move(started).error();

  for (size_t begin = 0, end; begin < sources.size(); begin = end) {
    WeightFormat kept = kept_int4(sources[begin]);
    for (end = begin + 1; end < sources.size() && kept_int4(sources[end]) == kept;) ++end;
    const auto alike = sources.subspan(begin, end - begin);
    if (kept.element == WeightElement::bf16 && alike.size() == sources.size()) kept = kept_together(sources);
    Result<Weight::Part> part = pack_part(alike, kept);
    if (part && int4_refused_) part = pack_part(alike, {WeightElement::bf16});
    if (!part) return std::move(part).error();
    if (!weight.parts.empty()) part->row_begin = weight.parts.back().row_begin + weight.parts.back().rows;
    weight.parts.push_back(std::move(*part));
  }
  return weight;
}

Result<Weight::Part> Loader::pack_part(std::span<const Backend::PackSource> sources, const WeightFormat& kept) {
  Weight::Part part;
  part.format = kept;
  for (const Backend::PackSource& s : sources) part.rows += s.rows->rows();
  const int64_t cols = sources[0].rows->cols();
  int4_.reset();
  int4_refused_ = false;
  if (kept.element == WeightElement::int4) int4_ = Int4Layout{part.rows, cols, kept.group};
  factors_ = factors_of(kept);
  layout_.emplace(factors_, part.rows, cols);
  row_bytes_ = size_t(cols) * size_t(factor_bytes(factors_));
  const bool eight = factors_ != Factors::bf16, made_up = sources[0].rows->synthetic().has_value();
  const size_t bytes = int4_ ? int4_->bytes() : eight ? layout_->bytes : size_t(part.rows) * row_bytes_;
  scales_.assign(eight ? size_t(layout_->scale_count) : 0, 0.f);
  void* data = nullptr;
  // Not backend.alloc, which fills with zeros and waits for the stream, and so for the copies before.
  if (cudaMalloc(&data, bytes) != cudaSuccess) {
    cudaGetLastError();
    return out_of_memory(bytes);
  }
  part.data = Buffer(&backend_, data, bytes);
  target_ = static_cast<std::byte*>(data);
  auto pieces = int4_ ? cut_int4(sources) : cut(sources, cols);
  std::unique_lock lock(mutex_);
  pieces_ = std::move(pieces);
  next_ = 0;
  working_ = threads_.size();
  ++round_;
  begin_.notify_all();
  end_.wait(lock, [&] { return working_ == 0; });
  if (eight && !made_up)
    CUDA_CHECK(cudaMemcpyAsync(target_ + layout_->scales_at, scales_.data(), scales_.size() * sizeof(float),
                               cudaMemcpyHostToDevice, stream_));
  CUDA_CHECK(cudaEventRecord(sent_, stream_));
  CUDA_CHECK(cudaStreamWaitEvent(context_.stream, sent_));
  return part;
}

void Loader::finish() {
  finished_ = true;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  if (stream_) CUDA_CHECK(cudaStreamSynchronize(stream_));
  for (const Slot& s : slots_) CUDA_CHECK(cudaEventDestroy(s.copied));
  slots_.clear();
  if (sent_) CUDA_CHECK(cudaEventDestroy(std::exchange(sent_, nullptr)));
  if (stream_) CUDA_CHECK(cudaStreamDestroy(std::exchange(stream_, nullptr)));
  if (pinned_) CUDA_CHECK(cudaFreeHost(std::exchange(pinned_, nullptr)));
}

}  // namespace

WeightFormat kept_format(const WeightFormat& format, int64_t rows, int64_t cols) {
  const bool aligned = rows % 16 == 0 && cols % 16 == 0, whole_rows = format.group >= cols;
  if (aligned && whole_rows && format.element == WeightElement::fp8)
    return {WeightElement::fp8, int(cols), false, 1};
  if (aligned && whole_rows && format.element == WeightElement::int8 && !format.has_min)
    return {WeightElement::int8, int(cols), false, 1};
  if (format.element == WeightElement::fp8 && format.group == kScaleBlock && format.group_rows == kScaleBlock &&
      rows % kScaleBlock == 0 && cols % kScaleBlock == 0)
    return {WeightElement::fp8, int(kScaleBlock), false, int(kScaleBlock)};
  if (const int group = int4_group(format.group, cols); format.element == WeightElement::int4 && group > 0)
    return {WeightElement::int4, group, true};
  return {WeightElement::bf16};
}

std::unique_ptr<WeightLoader> make_weight_loader(const Context& context, Backend& backend,
                                                 const WeightLoaderOptions& options) {
  return std::make_unique<Loader>(context, backend, options);
}

}  // namespace sluice::cuda
