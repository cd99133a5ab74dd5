#include "engine/kv_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "kv/block_table.h"
#include "model/decoder.h"

namespace sluice {
namespace {

constexpr int kLogitRows = 16;  // compared at a time: two of them lie side by side

struct Cache {
  KvTiering tiering = {};
  DType dtype = DType::f16;  // the backend's own, but ref/ keeps what it is told
  SparseDecode sparse = {};
};

// One sequence on a cache of its own.
class Reader {
 public:
  Reader(const ModelSpec& spec, const Weights& weights, Backend& backend, const Cache& cache,
         const KvEvaluationWish& wish)
      : backend_(backend),
        groups_(layer_groups(spec)),
        decoder_(spec, groups_, weights, backend, wish.block_tokens, kLogitRows),
        layout_(layout_of(groups_, cache.tiering, wish)),
        slots_(layout_.peak_blocks(layout_.max_length)),
        table_(layout_) {
    geometry_ = {.block_tokens = wish.block_tokens,
                 .layers_per_group = groups_.layers_per_group,
                 .kv_heads = spec.kv_heads,
                 .head_dim = spec.head_dim,
                 .dtype = cache.dtype,
                 .tiered = cache.tiering.on(),
                 .sparse = cache.sparse};
    pool_.block_bytes = backend.kv_block_bytes(geometry_);
    pool_.geometry = geometry_;
    memory_ = backend.alloc_pool(size_t(slots_) * pool_.block_bytes, geometry_);
    pool_.data = memory_.as<std::byte>();
    array_elements_ = size_t(wish.block_tokens) * 5 + 16 + 2 * size_t(layout_.most_moves()) +
                      size_t(layout_.groups()) * size_t(layout_.row_capacity());
    arrays_ = backend.alloc(array_elements_ * sizeof(int32_t));
    begin();
  }
  bool allocated() const { return pool_.data != nullptr && arrays_.data() && decoder_.activation_bytes() > 0; }
  const KvGeometry& geometry() const { return geometry_; }
  size_t pool_bytes() const { return size_t(slots_) * pool_.block_bytes; }

  void begin() {
    blocks_ = std::make_unique<BlockPool>(slots_, layout_.tiering);
    table_ = BlockTable(layout_);
    length_ = 0;
  }

  // A step of these tokens, whose logits can be read until the next.
  void compute(std::span<const int32_t> ids) {
    std::vector<BlockMove> moves;
    moves.reserve(size_t(layout_.most_moves()));
    table_.convert(*blocks_, layout_.tiering, length_, moves, layout_.most_moves());
    CHECK(table_.grow(*blocks_, length_ + int(ids.size())), "the pool holds one context");
    stage(ids, moves);
    if (!moves.empty()) backend_.move_blocks({batch_, geometry_, pool_.data, pool_.block_bytes});
    decoder_.forward(batch_, pool_);
    backend_.finish_step();
    blocks_->land(moves);
    length_ += int(ids.size());
    table_.drop_behind(*blocks_, length_);
  }
  // [count, V] in host memory.
  void logits(int first, int count, std::vector<float>& out) {
    const Tensor logits = decoder_.logits(batch_, first, count);
    backend_.finish_step();
    out.resize(size_t(count) * size_t(logits.cols));
    for (int r = 0; r < count; ++r)
      backend_.copy_out(out.data() + int64_t(r) * logits.cols, logits.row<float>(r),
                        size_t(logits.cols) * sizeof(float));
  }
  double bytes_per_token() const {
    return double(blocks_->use().owned) / kSlotUnits * double(pool_.block_bytes) / std::max(1, length_);
  }

 private:
  static KvLayout layout_of(const LayerGroups& groups, const KvTiering& tiering, const KvEvaluationWish& wish) {
    KvLayout layout;
    layout.block_tokens = layout.max_step_tokens = wish.block_tokens;
    layout.max_length = wish.window_tokens;
    layout.tiering = tiering;
    for (const LayerGroups::Group& group : groups.groups) layout.windows.push_back(group.window);
    return layout;
  }

  void stage(std::span<const int32_t> ids, const std::vector<BlockMove>& moves) {
    const int n = int(ids.size());
    std::vector<int32_t> staged;
    const auto put = [&](auto&& value_of, int count) {
      const int32_t* at = arrays_.as<int32_t>() + staged.size();
      for (int i = 0; i < count; ++i) staged.push_back(int32_t(value_of(i)));
      return at;
    };
    batch_ = {.tokens = n, .sequences = 1, .logit_rows = n};
    batch_.moves = reinterpret_cast<const KvMove*>(
        put([&](int i) { return i % 2 ? moves[size_t(i) / 2].second : moves[size_t(i) / 2].first; },
            2 * int(moves.size())));
    batch_.move_count = int(moves.size());
    batch_.token_ids = put([&](int i) { return ids[size_t(i)]; }, n);
    batch_.positions = put([&](int i) { return length_ + i; }, n);
    batch_.row_sequence = put([](int) { return 0; }, n);
    batch_.row_starts = put([&](int i) { return i * n; }, 2);
    batch_.kv_lengths = put([&](int) { return length_ + n; }, 1);
    batch_.logit_index = put([](int i) { return i; }, n);
    batch_.one_row_sequences = n == 1;
    batch_.prompt_blocks = n > 1 && layout_.tiering.on() ? layout_.blocks_for(length_ + n) : 0;
    batch_.table_stride = table_.row_blocks();
    batch_.groups = layout_.groups();
    for (int g = 0; g < batch_.groups; ++g)
      batch_.tables[g] =
          put([&](int i) { return blocks_->ref(table_.row(g)[size_t(i)]); }, table_.row_blocks());
    CHECK(staged.size() <= array_elements_);
    backend_.copy_in(arrays_.data(), staged.data(), staged.size() * sizeof(int32_t));
  }

  Backend& backend_;
  const LayerGroups groups_;
  Decoder decoder_;
  const KvLayout layout_;
  const int slots_;
  KvGeometry geometry_;
  KvPool pool_;
  Buffer memory_, arrays_;
  size_t array_elements_ = 0;
  std::unique_ptr<BlockPool> blocks_;
  BlockTable table_;
  int length_ = 0;
  BatchInput batch_;
};

// log of the sum of e to the logits, and the place of the largest.
struct Norm {
  double log_sum = 0;
  size_t likeliest = 0;
  explicit Norm(std::span<const float> logits) {
    likeliest = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const float most = logits[likeliest];
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - most);
    log_sum = most + std::log(sum);
  }
};

struct Sums {
  double loss = 0, full_loss = 0, kl = 0;
  int same = 0, tokens = 0;
  std::vector<float> each_kl{};

  void add(std::span<const float> logits, std::span<const float> full, int32_t target) {
    const Norm norm(logits), full_norm(full);
    loss += norm.log_sum - double(logits[size_t(target)]);
    full_loss += full_norm.log_sum - double(full[size_t(target)]);
    double divergence = 0;
    for (size_t i = 0; i < full.size(); ++i) {
      const double p = double(full[i]) - full_norm.log_sum;
      divergence += std::exp(p) * (p - (double(logits[i]) - norm.log_sum));
    }
    kl += divergence;
    each_kl.push_back(float(divergence));
    same += norm.likeliest == full_norm.likeliest;
    ++tokens;
  }
};

double percentile_99(std::vector<float> values) {
  const auto at = values.begin() + int64_t(values.size()) * 99 / 100;
  std::nth_element(values.begin(), at, values.end());
  return double(*at);
}

void cap(std::vector<float>& logits, float softcap) {
  if (softcap > 0)
    for (float& x : logits) x = softcap * std::tanh(x / softcap);
}

}  // namespace

Result<KvEvaluation> evaluate_kv(const ModelSpec& spec, const Weights& weights, Backend& backend,
                                 std::span<const int32_t> ids, const KvEvaluationWish& wish) {
  return compare_models({spec, weights}, {spec, weights}, backend, ids, wish);
}

Result<KvEvaluation> compare_models(const EvaluatedModel& full_model, const EvaluatedModel& wished_model,
                                    Backend& backend, std::span<const int32_t> ids,
                                    const KvEvaluationWish& wish) {
  const auto tiering = tiering_of(wish.kv);
  if (!tiering) return tiering.error();
  if (Status has = check_precision(wish.kv, backend); !has) return std::move(has).error();
  if (Status has = check_sparse(wish.kv, backend); !has) return std::move(has).error();
  const ModelSpec &spec = wished_model.spec, &other = full_model.spec;
  if (spec.vocab != other.vocab)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the models have vocabularies of {} and {} tokens, so they cannot be compared",
                             spec.vocab, other.vocab),
                 "baseline"};
  // ref/ has float32 in full; beside it, of the same model, bf16 means what a CPU has, half precision.
  const DType own = backend.kv_dtype();
  const bool same = &full_model.weights == &wished_model.weights;
  const DType beside = own == DType::f32 && same && !tiering->on() ? DType::f16 : own;
  const SparseDecode sparse{wish.kv.sparse_above, float(wish.kv.sparse_keep)};
  Reader full(other, full_model.weights, backend, {.dtype = own}, wish),
      wished(spec, wished_model.weights, backend, {*tiering, beside, sparse}, wish);
  const size_t step_rows = sparse.on() ? 1 : size_t(wish.block_tokens);  // only rows of their own read a part
  const bool reserved =
      full.allocated() && wished.allocated() &&
      backend.reserve({.max_tokens = wish.block_tokens,
                       .max_sequences = 1,
                       .max_columns = std::max({spec.hidden, spec.heads * spec.head_dim, spec.ffn, other.hidden,
                                                other.heads * other.head_dim, other.ffn}),
                       .max_heads = std::max(spec.heads, other.heads),
                       .head_dim = std::max(spec.head_dim, other.head_dim),
                       .max_context = wish.window_tokens,
                       .vocab = spec.vocab,
                       .max_logit_rows = kLogitRows,
                       .kv = wished.geometry()});
  if (!reserved)
    return Error{ErrorCode::kResourceExhausted,
                 fmt::format("not enough memory for two caches of {} tokens ({:.1f} MiB)", wish.window_tokens,
                             mib(full.pool_bytes() + wished.pool_bytes()))};
  Sums sums;
  KvEvaluation result;
  std::vector<int32_t> context;
  std::vector<float> a, b;
  const size_t lead = wish.first_id >= 0 ? 1 : 0;
  for (size_t begin = 0; begin < ids.size();) {
    const auto text = ids.subspan(begin, std::min(size_t(wish.window_tokens) - lead, ids.size() - begin));
    context.assign(lead, wish.first_id);
    context.insert(context.end(), text.begin(), text.end());
    full.begin(), wished.begin();
    for (size_t at = 0; at < context.size(); at += step_rows) {
      const auto step = std::span(context).subspan(at, std::min(step_rows, context.size() - at));
      full.compute(step), wished.compute(step);
      for (int first = 0; first < int(step.size()); first += kLogitRows) {
        const int count = std::min(kLogitRows, int(step.size()) - first);
        full.logits(first, count, a), wished.logits(first, count, b);
        cap(a, other.final_softcap), cap(b, spec.final_softcap);
        for (int r = 0; r < count && at + size_t(first + r) + 1 < context.size(); ++r) {
          const auto row = [&](const std::vector<float>& all) {
            return std::span(all).subspan(size_t(r) * size_t(spec.vocab), size_t(spec.vocab));
          };
          sums.add(row(b), row(a), context[at + size_t(first + r) + 1]);
        }
      }
      if (wish.progress) wish.progress(double(begin + at) / double(ids.size()));
    }
    result.full_bytes_per_token = full.bytes_per_token();
    result.bytes_per_token = wished.bytes_per_token();
    begin += text.size();
  }
  if (sums.tokens == 0) return Error{ErrorCode::kInvalidArgument, "the text has no two tokens", "data"};
  for (const auto& [name, loss] :
       {std::pair("the baseline", sums.full_loss), std::pair("the model", sums.loss)})
    if (!std::isfinite(loss))
      return Error{
          ErrorCode::kInvalidArgument,
          fmt::format("{} computes numbers that are none (NaN or infinite): its weights are damaged or "
                      "too large for their format",
                      name),
          "model"};
  result.tokens = sums.tokens;
  result.perplexity = std::exp(sums.loss / sums.tokens);
  result.full_perplexity = std::exp(sums.full_loss / sums.tokens);
  result.mean_kl = sums.kl / sums.tokens;
  result.p99_kl = percentile_99(std::move(sums.each_kl));
  result.top1_agreement = double(sums.same) / sums.tokens;
  return result;
}

}  // namespace sluice
