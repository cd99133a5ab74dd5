#include "engine/kv_evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "engine/device_check.h"
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
  Reader(const EvaluatedModel& model, const Cache& cache, const KvEvaluationWish& wish)
      : spec_(model.spec),
        backend_(model.backend),
        groups_(layer_groups(spec_)),
        decoder_(spec_, groups_, model.weights, backend_, wish.block_tokens, kLogitRows),
        layout_(layout_of(groups_, cache.tiering, wish)),
        slots_(layout_.peak_blocks(layout_.max_length)),
        table_(layout_) {
    geometry_ = {.block_tokens = wish.block_tokens,
                 .layers_per_group = groups_.layers_per_group,
                 .kv_heads = spec_.kv_heads,
                 .head_dim = spec_.head_dim,
                 .dtype = cache.dtype,
                 .tiered = cache.tiering.on(),
                 .sparse = cache.sparse};
    pool_.block_bytes = backend_.kv_block_bytes(geometry_);
    pool_.geometry = geometry_;
    array_elements_ = size_t(wish.block_tokens) * 5 + 16 + 2 * size_t(layout_.most_moves()) +
                      size_t(layout_.groups()) * size_t(layout_.row_capacity());
    arrays_ = backend_.alloc(array_elements_ * sizeof(int32_t));
    begin();
  }
  void allocate_pool() {
    memory_ = backend_.alloc_pool(pool_bytes(), geometry_);
    pool_.data = memory_.as<std::byte>();
  }
  bool allocated() const { return arrays_.data() && decoder_.activation_bytes() > 0; }
  bool has_pool() const { return pool_.data != nullptr; }
  const ModelSpec& spec() const { return spec_; }
  Backend& backend() const { return backend_; }
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
  // Brings the logits of `count` of the step's rows to host memory.
  void fetch(int first, int count) {
    const Tensor logits = decoder_.logits(batch_, first, count);
    backend_.finish_step();
    logits_.resize(size_t(count) * size_t(logits.cols));
    for (int r = 0; r < count; ++r)
      backend_.copy_out(logits_.data() + int64_t(r) * logits.cols, logits.row<float>(r),
                        size_t(logits.cols) * sizeof(float));
    if (const float cap = spec_.final_softcap; cap > 0)
      for (float& x : logits_) x = cap * std::tanh(x / cap);
  }
  // [V] of the fetched rows.
  std::span<const float> logits(int row) const {
    return std::span(logits_).subspan(size_t(row) * size_t(spec_.vocab), size_t(spec_.vocab));
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

  const ModelSpec& spec_;
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
  std::vector<float> logits_;
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

// The baseline's distribution of one token.
struct Judge {
  explicit Judge(std::span<const float> l) : logits(l), norm(l), shares(l.size()) {
    for (size_t i = 0; i < l.size(); ++i) shares[i] = std::exp(double(l[i]) - norm.log_sum);
  }
  std::span<const float> logits;
  Norm norm;
  std::vector<double> shares;
};

struct Sums {
  double loss = 0, full_loss = 0, kl = 0;
  int same = 0, tokens = 0;
  std::vector<float> each_kl{};

  void add(std::span<const float> logits, const Judge& full, int32_t target) {
    const Norm norm(logits);
    loss += norm.log_sum - double(logits[size_t(target)]);
    full_loss += full.norm.log_sum - double(full.logits[size_t(target)]);
    double divergence = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      divergence += full.shares[i] * (double(full.logits[i]) - double(logits[i]));
    divergence += norm.log_sum - full.norm.log_sum;
    kl += divergence;
    each_kl.push_back(float(divergence));
    same += norm.likeliest == full.norm.likeliest;
    ++tokens;
  }
};

double percentile_99(std::vector<float> values) {
  const auto at = values.begin() + int64_t(values.size()) * 99 / 100;
  std::nth_element(values.begin(), at, values.end());
  return double(*at);
}

// One of the wished models on its way through the text.
struct Row {
  Status state;
  std::unique_ptr<Reader> reader;
  Sums sums{};
  double bytes_per_token = 0;
};

Status check_kernels(const EvaluatedModel& model, const KvSettings& kv, const KvEvaluationWish& wish) {
  return check_device(model.backend, model.spec, kv,
                      {.block_tokens = wish.block_tokens, .tokens = wish.block_tokens, .sequences = 1});
}

Status check_comparison(const EvaluatedModel& full, const EvaluatedModel& wished,
                        const KvEvaluationWish& wish) {
  if (Status has = check_kernels(wished, wished.kv, wish); !has) return has;
  if (wished.spec.vocab != full.spec.vocab)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the models have vocabularies of {} and {} tokens, so they cannot be compared",
                             wished.spec.vocab, full.spec.vocab),
                 "baseline"};
  return {};
}

std::unique_ptr<Reader> reader_of(const EvaluatedModel& full, const EvaluatedModel& wished,
                                  const KvEvaluationWish& wish) {
  // ref/ has float32 in full; beside it, of the same model, bf16 means what a CPU has, half precision.
  const KvTiering tiering = *tiering_of(wished.kv);
  const DType own = wished.backend.kv_dtype();
  const bool same = &full.weights == &wished.weights;
  const DType beside = own == DType::f32 && same && !tiering.on() ? DType::f16 : own;
  const SparseDecode sparse{wished.kv.sparse_above, float(wished.kv.sparse_keep)};
  return std::make_unique<Reader>(wished, Cache{tiering, beside, sparse}, wish);
}

// Scratch for all readers of a backend, and pools: on a card these come last, elsewhere what comes after
// reserve() must succeed.
Status allocate(std::span<Reader* const> readers, const KvEvaluationWish& wish) {
  Backend& backend = readers.front()->backend();
  WorkspaceShape shape{.max_tokens = wish.block_tokens,
                       .max_sequences = 1,
                       .max_context = wish.window_tokens,
                       .max_logit_rows = kLogitRows,
                       .kv = readers.front()->geometry()};
  bool enough = true;
  size_t bytes = 0;
  for (const Reader* r : readers) {
    const ModelSpec& s = r->spec();
    shape.max_columns = std::max({shape.max_columns, s.hidden, s.heads * s.head_dim, s.ffn});
    shape.max_heads = std::max(shape.max_heads, s.heads);
    shape.head_dim = std::max(shape.head_dim, s.head_dim);
    shape.vocab = std::max(shape.vocab, s.vocab);
    if (r->geometry().sparse.on()) shape.kv = r->geometry();
    enough = enough && r->allocated();
    bytes += r->pool_bytes();
  }
  const auto pools = [&] {
    for (Reader* r : readers) r->allocate_pool(), enough = enough && r->has_pool();
  };
  const bool card = backend.info().is_card();
  CHECK(!card || readers.size() == 1, "attention on a card knows one pool");
  if (!card && enough) pools();
  enough = enough && backend.reserve(shape).ok();
  if (card && enough) pools();
  if (enough) return {};
  return Error{
      ErrorCode::kResourceExhausted,
      fmt::format("not enough memory for caches of {} tokens ({:.1f} MiB)", wish.window_tokens, mib(bytes))};
}

Status allocate(Reader& full, std::span<Row> rows, const KvEvaluationWish& wish) {
  std::vector<std::pair<Reader*, Row*>> left = {{&full, nullptr}};
  for (Row& row : rows)
    if (row.reader) left.emplace_back(row.reader.get(), &row);
  while (!left.empty()) {
    const Backend* backend = &left.front().first->backend();
    const auto others = std::stable_partition(
        left.begin(), left.end(), [&](const auto& entry) { return &entry.first->backend() == backend; });
    std::vector<Reader*> together;
    for (auto at = left.begin(); at != others; ++at) together.push_back(at->first);
    if (Status enough = allocate(together, wish); !enough) {
      for (auto at = left.begin(); at != others; ++at) {
        if (!at->second) return enough;
        at->second->state = enough.error(), at->second->reader.reset();
      }
    }
    left.erase(left.begin(), others);
  }
  return {};
}

Error no_numbers(const char* who) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} computes numbers that are none (NaN or infinite): its weights are damaged or "
                      "too large for their format",
                      who),
          "model"};
}

Result<KvEvaluation> found_of(Row& row, double full_bytes_per_token) {
  if (!row.state) return row.state.error();
  Sums& sums = row.sums;
  if (!std::isfinite(sums.loss)) return no_numbers("the model");
  return KvEvaluation{.tokens = sums.tokens,
                      .perplexity = std::exp(sums.loss / sums.tokens),
                      .full_perplexity = std::exp(sums.full_loss / sums.tokens),
                      .mean_kl = sums.kl / sums.tokens,
                      .p99_kl = percentile_99(std::move(sums.each_kl)),
                      .top1_agreement = double(sums.same) / sums.tokens,
                      .bytes_per_token = row.bytes_per_token,
                      .full_bytes_per_token = full_bytes_per_token};
}

// Adds what the step just computed says of the tokens behind its rows; `next` are these tokens, fewer than rows
// where the context ends.
void compare_step(Reader& full, std::span<Row> rows, std::span<const int32_t> next) {
  for (int first = 0; first < int(next.size()); first += kLogitRows) {
    const int count = std::min(kLogitRows, int(next.size()) - first);
    full.fetch(first, count);
    for (Row& row : rows)
      if (row.reader) row.reader->fetch(first, count);
    for (int r = 0; r < count; ++r) {
      const Judge judge(full.logits(r));
      for (Row& row : rows)
        if (row.reader) row.sums.add(row.reader->logits(r), judge, next[size_t(first + r)]);
    }
  }
}

}  // namespace

Result<std::vector<Result<KvEvaluation>>> compare_models(const EvaluatedModel& full_model,
                                                         std::span<const EvaluatedModel> wished,
                                                         std::span<const int32_t> ids,
                                                         const KvEvaluationWish& wish) {
  const size_t lead = wish.first_id >= 0 ? 1 : 0;
  if (ids.size() + lead < 2)
    return Error{ErrorCode::kInvalidArgument, "the text has no two tokens: give a longer one", "data"};
  if (Status has = check_kernels(full_model, {}, wish); !has) return std::move(has).error();
  Reader full(full_model, {.dtype = full_model.backend.kv_dtype()}, wish);
  std::vector<Row> rows;
  size_t step_rows = size_t(wish.block_tokens);
  for (const EvaluatedModel& model : wished) {
    Row& row = rows.emplace_back(Row{check_comparison(full_model, model, wish), nullptr});
    if (row.state) row.reader = reader_of(full_model, model, wish);
    if (row.state && row.reader->geometry().sparse.on()) step_rows = 1;  // only rows of their own read a part
  }
  if (Status enough = allocate(full, rows, wish); !enough) return std::move(enough).error();

  double full_bytes_per_token = 0;
  std::vector<int32_t> context;
  for (size_t begin = 0; begin < ids.size();) {
    const auto text = ids.subspan(begin, std::min(size_t(wish.window_tokens) - lead, ids.size() - begin));
    context.assign(lead, wish.first_id);
    context.insert(context.end(), text.begin(), text.end());
    full.begin();
    for (Row& row : rows)
      if (row.reader) row.reader->begin();
    for (size_t at = 0; at < context.size(); at += step_rows) {
      const auto step = std::span(context).subspan(at, std::min(step_rows, context.size() - at));
      full.compute(step);
      for (Row& row : rows)
        if (row.reader) row.reader->compute(step);
      compare_step(full, rows,
                   std::span(context).subspan(at + 1, std::min(step.size(), context.size() - at - 1)));
      if (wish.progress) wish.progress(double(begin + at) / double(ids.size()));
    }
    full_bytes_per_token = full.bytes_per_token();
    for (Row& row : rows)
      if (row.reader) row.bytes_per_token = row.reader->bytes_per_token();
    begin += text.size();
  }
  std::vector<Result<KvEvaluation>> found;
  for (Row& row : rows) {
    if (row.state && !std::isfinite(row.sums.full_loss)) return no_numbers("the baseline");
    found.push_back(found_of(row, full_bytes_per_token));
  }
  return found;
}

}  // namespace sluice
