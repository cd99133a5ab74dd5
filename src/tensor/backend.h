// The one interface between the model's words and a device: some forty virtual functions. A dozen are a step's
// words (each op takes one struct); fifteen are memory and what is asked of a device before the first step;
// the rest let steps overlap and be replayed, with bodies that serve a device which does neither.
//
// Threads: one at a time. The thread that loads makes the backend and calls everything up to the first step;
// from then on the executor's thread makes every call, in step order; whoever drops the engine frees the
// buffers and the backend at the end, when no step is under way. `info` and `check` may be called by any of
// them. On a card the ops enqueue work on the compute stream (recorded steps are replayed as one launch); on
// the CPU they run on a team of threads and return when done. Nothing is allocated inside an op: scratch comes
// from the workspace made by `reserve`.
//
// Numbers: on the CPU a row's result depends on that row's inputs alone, bit for bit, whatever the other rows
// are and however many (that is what makes a batched request equal to the same request alone). On a card equal
// steps give equal bits too, but the number of rows in a step chooses the kernels and how they split their
// sums, so the last bits of a row may differ from one batch to another.
//
// Shape symbols (tensor/README.md): T rows (tokens) in the step, S sequences, R rows whose logits are wanted, C
// hidden width, H query heads, G key/value heads, D head width, F feed-forward width, V vocabulary, N/K
// rows/columns of a weight.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/kv_tier.h"
#include "tensor/sparse_decode.h"
#include "tensor/tensor.h"

namespace sluice {

inline constexpr int kMaxLayerGroups = 16;
inline constexpr int kStepsInFlight = 2;  // at most; a slot names one of them: 0 .. kStepsInFlight - 1
inline constexpr int kMaxTopLogprobs = 20;

// How keys and values lie in blocks. One block holds `block_tokens` tokens of all layers of one group. Groups
// have the same number of layers each (padded if need be), so blocks of all groups have one size and come from
// one pool.
struct KvGeometry {
  int block_tokens = 16;
  int layers_per_group = 0;
  int kv_heads = 0;  // G
  int head_dim = 0;  // D
  DType dtype = DType::f16;
  bool tiered = false;    // blocks of smaller tiers may lie in the pool: a slot then has room for their scales
  SparseDecode sparse{};  // where on, blocks have bounds of their keys, which attention chooses by
};

// The block pool's memory, and where one layer's share of each block lies.
struct KvLayer {
  std::byte* pool = nullptr;  // slot s starts at pool + s * block_bytes; blocks lie as kv_tier.h says
  size_t block_bytes = 0;
  int layer_in_group = 0;
  int group = 0;
};

// A whole block, and the place that it shall have too.
struct KvMove {
  KvRef from = kNoKvRef, to = kNoKvRef;
};

// The step as flat arrays in device memory (host memory on the CPU), built by engine/batch_builder.
struct BatchInput {
  int tokens = 0;                         // T
  int sequences = 0;                      // S
  int logit_rows = 0;                     // R
  const int32_t* token_ids = nullptr;     // [T]; a negative entry -1-s means: the id last sampled for slot s
  const int32_t* positions = nullptr;     // [T] absolute position in the sequence
  const int32_t* row_sequence = nullptr;  // [T] which of the S sequences a row belongs to
  const int32_t* row_starts =
      nullptr;  // [S + 1] first row of each sequence; rows of a sequence are consecutive positions
  const int32_t* kv_lengths = nullptr;   // [S] tokens in the cache once this step's rows are stored
  const int32_t* logit_index = nullptr;  // [R] rows (0..T-1) whose logits are wanted
  const int32_t* last_ids = nullptr;     // [slots] the id last sampled per slot, written by `sample`
  int slot = 0;                          // which of the steps in flight (0, 1) this is: its staging, its events
  int one_row_sequences = 0;             // of the S, those with exactly one row
  int table_stride = 0;                  // blocks per row of a table
  const int32_t* tables[kMaxLayerGroups] =
      {};  // per layer group [S, table_stride]: KvRefs; -1 behind the window. Rows are stored in full blocks
  int groups = 0;
  const KvMove* moves = nullptr;  // [move_count] for move_blocks, before the step's ops
  int move_count = 0;
  // Where some block of a sequence with several rows is in a small tier: blocks that such sequences have, in
  // the table that has the most; else 0. Known to the host, so that a device knows how much it has to unpack.
  int prompt_blocks = 0;
};

// Of move_blocks: all layers of the blocks are copied, converted where the tiers differ.
struct MoveBlocksArgs {
  const BatchInput& batch;
  const KvGeometry& geometry;
  std::byte* pool;
  size_t block_bytes;  // of a slot
};

// A block between the pool and host memory (from alloc_host), byte for byte: its units of a slot, as it lies.
struct HostCopy {
  size_t pool_offset = 0;
  std::byte* host = nullptr;
  size_t bytes = 0;
  bool to_host = false;
};

// Of copy_host.
struct HostCopiesArgs {
  int slot = 0;  // of the step in flight
  std::byte* pool = nullptr;
  std::span<const HostCopy> copies;  // alive until submit_step
};

struct EmbedArgs {
  const Weight& table;  // [V, C]
  const BatchInput& batch;
  float scale;  // 1, or sqrt(C) for Gemma
  Tensor out;   // [T, C] f32: the residual
};

struct RmsNormArgs {
  Tensor x;             // [T, C] f32: the residual
  const float* weight;  // [C]
  float eps;
  Tensor out;  // [T, C]; may be x where activations are f32
};

// residual += x (or += rms_norm(x) * post_weight where post_weight is given, as Gemma does); out =
// rms_norm(residual) * weight. Without a weight (and post_weight) only the first, and `out` is not touched.
struct AddRmsNormArgs {
  Tensor residual;           // [T, C] f32, updated
  Tensor x;                  // [T, C]
  const float* post_weight;  // [C] or null
  const float* weight;       // [C] or null
  float eps;
  Tensor out;  // [T, C]; may be x
};

// Whoever makes a tensor that `linear` writes has rows for a multiple of these: those behind its own may be
// overwritten with anything.
inline constexpr int64_t kRowsLeftToBackend = 16;

// out = x · wᵀ (+ bias). Integer weights: the backend quantizes x once, per group of 32 columns, to int8;
// weights of eight bits on a card: per row.
struct LinearArgs {
  Tensor x;           // [M, K]
  const Weight& w;    // [N, K]
  const float* bias;  // [N] or null
  Tensor out;         // [M, N], and rows as kRowsLeftToBackend says
};

// Per-head RMS norm of q and k where weights are given, then rotation of q (in place) and k by position, then k
// and v into the cache. The rotation pairs element i with i + rotary/2 ("neox"); checkpoints that interleave
// are permuted at load.
struct RopeStoreArgs {
  Tensor qkv;  // [T, (H + 2G) * D]: q heads, k heads, v heads
  const BatchInput& batch;
  const KvGeometry& geometry;
  KvLayer kv;
  int heads;            // H
  const float* q_norm;  // [D] or null
  const float* k_norm;  // [D] or null
  float norm_eps;
  int rotary;             // rotated columns per head, even, <= D
  const float* inv_freq;  // [rotary / 2], rope scaling folded in
  float rope_magnitude;   // cos and sin are multiplied by this (1 unless the scaling says so)
};

// Causal attention of each row over its sequence's cached keys (this step's included).
struct AttentionArgs {
  Tensor q;  // [T, H * D] (a view into qkv)
  const BatchInput& batch;
  const KvGeometry& geometry;
  KvLayer kv;
  int heads;      // H; head h reads kv head h / (H / G)
  float scale;    // multiplies q·k
  int window;     // 0: all; w: a row at position p sees positions p-w+1 .. p
  float softcap;  // 0: none; c: scores become c * tanh(score / c)
  Tensor out;     // [T, H * D]
};

enum class Activation : uint8_t { silu, gelu_tanh };

struct ActMulArgs {
  Tensor gate_up;  // [T, 2F]: gate, then up
  Activation activation;
  Tensor out;  // [T, F] = act(gate) * up
};

inline constexpr int kMaxExperts = 512;

// The feed-forward of one expert.
struct ExpertWeights {
  Weight gate_up;  // [2F, C]
  Weight down;     // [C, F]
};

// A mixture of experts: each row goes through the K experts that its router likes best, and their outputs are
// summed by weight. `normalised`: the chosen experts' weights sum to 1 (softmax over the chosen), else they are
// what they are in the softmax over all. Source: the Mixtral and Qwen3 reports.
struct ExpertsArgs {
  Tensor x;                                // [T, C]
  Tensor router;                           // [T, E] logits
  std::span<const ExpertWeights> experts;  // [E]
  int per_token;                           // K
  bool normalised;
  Activation activation;
  Tensor gathered;  // scratch [T * K, C]
  Tensor gate_up;   // scratch [T * K, 2F]
  Tensor gated;     // scratch [T * K, F]
  Tensor routing;   // scratch i32 [T, 4K]
  Tensor out;       // [T, C]; may be x
};

// One row's wishes for the next token. Plain data in host memory; the lists stay alive until the step is done.
struct SampleRow {
  int slot =
      -1;  // where the sampled id is kept for the next step (last_ids); -1: nothing is sampled, only logprobs
  float temperature = 0;  // 0: greedy; ties go to the lowest id
  int top_k = 0;          // 0: off
  float top_p = 1;
  float min_p = 0;
  float presence_penalty = 0;        // over generated ids
  float frequency_penalty = 0;       // over generated ids
  float repetition_penalty = 1;      // over prompt and generated ids
  uint64_t seed = 0;                 // with `counter` names the random number: counter-based, so no state
  uint64_t counter = 0;              // position of the token being sampled
  const int32_t* history = nullptr;  // prompt and generated ids; needed only with penalties
  int history_prompt = 0;
  int history_total = 0;
  const int32_t* bias_ids = nullptr;  // logit_bias
  const float* bias_values = nullptr;
  int bias_count = 0;
  const int32_t* banned_ids = nullptr;  // never sampled (end ids while min_tokens holds)
  int banned_count = 0;
  const uint32_t* mask = nullptr;  // [(V + 31) / 32] allowed ids, or null (structured output)
  int top_logprobs = -1;           // -1: no log-probabilities wanted
  int32_t target_id = -1;          // a given id whose log-probability is wanted (prompt tokens)
};

// What came of a row. Log-probabilities are of the model's own distribution: before bias, penalties and
// temperature.
struct SampleResult {
  int32_t id = -1;    // sampled, or target_id
  float logprob = 0;  // of `id`
  int rank = 0;       // 0-based rank of `id` among the logits, when log-probabilities are wanted
  int top_count = 0;
  // Probability of the likeliest id, where it is known without further work: of what was drawn from, or of the
  // model's own distribution where log-probabilities are wanted. 0: not told.
  float peak = 0;
  int32_t top_ids[kMaxTopLogprobs];
  float top_logprobs[kMaxTopLogprobs];
};

struct SampleArgs {
  Tensor logits;                    // [R, V] f32; may be overwritten
  std::span<const SampleRow> rows;  // [R]
  std::span<SampleResult> results;  // [R]
  int32_t* last_ids;                // [slots]
  float softcap;                    // 0: none; final logits become c * tanh(x / c) first
  int slot = 0;       // of the step in flight; a device reads what `stage` was given for it, from first_row on
  int first_row = 0;  // of the step's rows, the one that logits' row 0 belongs to
};

struct DeviceInfo {
  std::string name;             // "AMD EPYC …", "NVIDIA H200"
  std::string instruction_set;  // "avx2", "avx512-vnni", "sm_90a"
  int threads = 0;              // CPU team size
  size_t memory_bytes = 0;      // free for weights and KV at start
  size_t memory_total = 0;      // of a card of its own; 0 where memory is shared with everything else
  size_t memory_others = 0;     // of the card, what other programs held when this one began
  std::string state{};          // of the card at start: driver, power, clocks; empty where unknown

  bool is_card() const { return memory_total > 0; }
};

// For messages: "; 12.3 GiB are used by other processes on this card", or nothing where that is not known to be
// so.
std::string others_on_card(const DeviceInfo& device);

// One piece of host memory (from alloc_host) to bring to the device: rows of row_bytes, or one.
struct Upload {
  void* device = nullptr;
  const void* host = nullptr;
  size_t row_bytes = 0;
  size_t rows = 1;
  size_t device_pitch = 0, host_pitch = 0;  // bytes from row to row
};

// As the device's own clock saw a step.
struct StepTimes {
  int64_t busy_ns = 0;       // 0: the device keeps no clock of its own
  int64_t idle_ns = 0;       // between the end of the step before and the start of this one
  int64_t host_copy_ns = 0;  // of copy_host; 0: none, or not known
  // Of copies, by direction: what `stage` brought, and blocks from and to the host (their time split by bytes).
  // 0: none, or not timed.
  int64_t to_device_ns = 0, to_host_ns = 0;
};

// What a device of its own can do at most, measured on it.
struct DeviceRates {
  double read_bytes_s = 0;  // of its memory; 0: not known
  double matrix_ops_s = 0;  // of large products of the type that activations have; two a multiply-add
};

// What a model and the engine's settings ask of a device, as known from a file's header.
struct DeviceNeeds {
  int hidden = 0;  // C
  int ffn = 0;     // F
  int vocab = 0;   // V
  int heads = 0, kv_heads = 0, head_dim = 0;
  int experts = 0;  // 0: one feed-forward for all rows
  int block_tokens = 0;
  int step_tokens = 0;  // T at most
  int max_sequences = 0;
  bool kv_tiers = false;  // blocks go to small tiers
};

// What `reserve` sizes scratch for.
struct WorkspaceShape {
  int max_tokens = 0;     // T
  int max_sequences = 0;  // S
  int max_columns = 0;    // widest K of any linear
  int max_heads = 0;
  int head_dim = 0;
  int max_context = 0;
  int vocab = 0;
  int max_logit_rows = 0;  // R of one call of sample
  KvGeometry kv;           // of the pool to come
};

class Backend {
 public:
  virtual ~Backend() = default;

  // -- Memory. Everything is allocated before the server is ready.
  virtual DeviceInfo info() const = 0;
  // Whether the kernels can run this; before weights are read. Error (kUnsupported): what they cannot, with
  // `field` naming the setting where it is one, empty where it is the model's shape.
  virtual Status check(const DeviceNeeds& needs) const { return {}; }
  // Takes a fraction of a second and some GiB meanwhile; before anything else is allocated.
  virtual DeviceRates measure_rates() { return {}; }
  virtual Buffer alloc(size_t bytes) = 0;  // zero-filled; empty where there is not so much left
  virtual void free(void* data, size_t bytes) = 0;
  virtual void copy_in(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
  // Scratch for the ops, after the last `pack`; once. Error (kResourceExhausted): what found no memory.
  virtual Status reserve(const WorkspaceShape& shape) = 0;
  // What reserve() will take for second copies of 4-bit weights that would take so many bytes as bf16, of a
  // model whose weights take `weights` and are not loaded yet.
  virtual size_t copies_bytes(size_t weights, size_t four_bits_as_bf16) const { return 0; }
  // The block pool's memory; a device that describes it to its copy engine learns of it here.
  virtual Buffer alloc_pool(size_t bytes, const KvGeometry& geometry) { return alloc(bytes); }
  // Host memory that the device reads and writes by itself (pinned, on a GPU).
  virtual Buffer alloc_host(size_t bytes) { return alloc(bytes); }

  // Type of activations between ops: f32 on the CPU.
  virtual DType activation_dtype() const = 0;
  virtual DType kv_dtype() const = 0;
  virtual bool has_kv_tier(KvTier tier) const { return tier == KvTier::full; }
  virtual bool has_sparse_decode() const { return false; }
  virtual size_t kv_block_bytes(const KvGeometry& geometry) const = 0;  // of a slot
  // Of what `reserve` takes, the part for reading small blocks and choosing among many: for plans of memory.
  virtual size_t kv_workspace_bytes(const WorkspaceShape& shape) const { return 0; }

  // Packs rows of the sources, one after the other, into this backend's layout. `row_order` (per source, empty
  // = as stored) lists which stored row becomes row i. Called at load, from one thread.
  struct PackSource {
    const RowSource* rows = nullptr;
    std::span<const int32_t> row_order;
    bool of_expert = false;  // for experts(), which may want another layout than linear()
  };
  virtual Result<Weight> pack(std::span<const PackSource> sources) = 0;
  // As what `pack` keeps a matrix of this format, where it joins no other: what plans of memory count.
  virtual WeightFormat kept_format(const WeightFormat& format, int64_t rows, int64_t cols) const {
    return format;
  }

  // -- The step. begin_step plans attention (work split over cores or SMs) once for all layers.
  virtual void begin_step(const BatchInput& batch, const KvGeometry& geometry, int heads) = 0;
  virtual void embed(const EmbedArgs& a) = 0;
  virtual void rms_norm(const RmsNormArgs& a) = 0;
  virtual void add_rms_norm(const AddRmsNormArgs& a) = 0;
  virtual void linear(const LinearArgs& a) = 0;
  virtual void rope_store_kv(const RopeStoreArgs& a) = 0;
  virtual void attention(const AttentionArgs& a) = 0;
  virtual void act_mul(const ActMulArgs& a) = 0;
  virtual void experts(const ExpertsArgs& a);  // the body serves backends whose calls have done their work
  virtual void gather_rows(const Tensor& x, const int32_t* index,
                           const Tensor& out) = 0;  // out[i] = x[index[i]]
  virtual void sample(const SampleArgs& a) = 0;
  virtual void copy_blocks(std::byte* pool, size_t block_bytes,
                           std::span<const std::pair<int32_t, int32_t>> from_to) = 0;
  // batch.moves, in any order: none reads a place that another one of them fills.
  virtual void move_blocks(const MoveBlocksArgs& a);
  // Blocks to and from host memory, between open_step and submit_step of the slot, before its ops. None of them
  // is written by this step's ops, moves or copies, and none that comes from the host is read by them: so a
  // device makes them beside these, on a stream of its own, behind the end of the step before. The ops of the
  // step after it wait for those that go to the host (they may write to such blocks), and step_done for all.
  virtual void copy_host(const HostCopiesArgs& a);
  virtual void finish_step() = 0;  // returns once all work enqueued so far is done (CPU: at once)

  // -- Steps that overlap. `slot` (0, 1) names which of the two in flight; a slot is used again only after
  // step_done. The order per step: stage, open_step, then the ops or replay, then submit_step. The bodies here
  // serve devices whose calls have done their work when they return.

  // Brings a step's arrays and its rows' wishes to the device while the step before may still run. Rows are
  // padded to `padded_rows` with rows that want nothing.
  virtual void stage(int slot, std::span<const Upload> uploads, std::span<const SampleRow> rows,
                     int padded_rows);
  virtual void open_step(int slot) {}                    // the ops that follow wait for what was staged
  virtual void submit_step(int slot) {}                  // everything of the step has been enqueued
  virtual bool step_done(int slot) { return true; }      // its results can be read
  virtual StepTimes step_times(int slot) { return {}; }  // after step_done

  // -- Replay. Ops between begin_recording and end_recording are kept under `key`, and run once by
  // end_recording; later steps of the same shapes and the same slot are one launch. What differs between such
  // steps lies in device memory. False: nothing is kept under that key.
  virtual bool can_record() const { return false; }
  virtual void begin_recording(int key) {}
  virtual void end_recording(int key) {}
  virtual bool replay(int key) { return false; }
};

struct CpuOptions {
  int threads = 0;              // 0: one per physical core that this process may use
  std::string instruction_set;  // empty: the best that the CPU has; "scalar", "avx2", "avx512-vnni", "amx" to
                                // force one down
};

struct CudaOptions {
  int device = 0;  // as CUDA counts them
  // Norms and activations write their output quantized too where eight-bit weights take it; false, to measure
  // what that is worth: a kernel more before a product.
  bool fuse_quantization = true;
  // 4-bit weights are kept as bf16 too, for steps of many rows, where that takes a fifth or less of what the
  // fraction leaves beside weights.
  bool bf16_copies = true;
  double memory_fraction = 0.9;  // of the card's
  // Two events a step more, for StepTimes::to_device_ns and to_host_ns.
  bool time_copies = false;
};

std::unique_ptr<Backend> make_ref_backend();  // float32, one thread, obvious: the judge
Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options);

// CUDA. The driver is found at run time. Errors give the cause alone, without advice: kNotFound where this
// build has no CUDA, or the machine no driver or no card of that number; else a card is there and cannot be
// used (not sm_90, full, held by another).
Result<std::unique_ptr<Backend>> make_cuda_backend(const CudaOptions& options);

}  // namespace sluice
