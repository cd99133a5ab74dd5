#include "quantize/layer_quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "model/formats/rows.h"
#include "model/formats/shown.h"
#include "quantize/awq.h"
#include "quantize/gptq.h"
#include "quantize/smooth.h"

namespace sluice::quantize {
namespace {

class Layer {
 public:
  Layer(const Checkpoint& checkpoint, int layer, const Plan& plan, LayerStatistics& statistics,
        LayerTools tools)
      : checkpoint_(checkpoint), layer_(layer), plan_(plan), statistics_(statistics), tools_(tools) {}

  Result<QuantizedLayer> run() {
    if (Status read = read_all(); !read) return std::move(read).error();
    for (auto& [input, s] : statistics_) s.finish();
    // In the order of the layer: factors of a group change what the next one rounds.
    for (const LinearGroup& group : plan_.groups) move_factors(group);
    for (const LinearGroup& group : plan_.groups)
      for (const std::string& slot : group.slots) {
        if (plan_.kept.contains(slot)) continue;
        Quantized made = quantized(group, slot);
        if (const auto* m = std::get_if<IntegerMatrix>(&made))
          if (first_not_finite(m->scale))
            return Error{
                ErrorCode::kUnsupported,
                fmt::format("{}: tensor {} has values too large for {} bits, whose scales are f16: "
                            "choose more bits, --method fp8, or leave it out (--targets)",
                            checkpoint_.path(), shown(fmt::format("blk.{}.{}", layer_, slot)), m->bits)};
        out_.matrices.emplace(slot, std::move(made));
      }
    for (const std::string& name : changed_)
      if (!out_.matrices.contains(name)) out_.replaced.emplace(name, std::move(tensors_[name]));
    return std::move(out_);
  }

 private:
  Status read_all() {
    for (const LinearGroup& group : plan_.groups) {
      std::vector<std::string> wanted = group.slots;
      if (plan_.settings.method == Method::awq || plan_.settings.method == Method::int8) {
        if (!group.norm.empty()) wanted.push_back(group.norm);
        if (group.feeder == "attn_v.weight" && checkpoint_.spec().qkv_bias) wanted.push_back("attn_v.bias");
      }
      for (const std::string& slot : wanted) {
        if (tensors_.contains(slot)) continue;
        Result<Matrix> read = read_tensor(checkpoint_, fmt::format("blk.{}.{}", layer_, slot));
        if (!read) return std::move(read).error();
        tensors_.emplace(slot, std::move(*read));
      }
    }
    return {};
  }

  void move_factors(const LinearGroup& group) {
    const Method method = plan_.settings.method;
    const bool norm = !group.norm.empty(), feeder = method == Method::awq && !group.feeder.empty();
    if ((method != Method::awq && method != Method::int8) || (!norm && !feeder)) return;
    std::vector<const Matrix*> weights;
    for (const std::string& slot : group.slots) {
      if (plan_.kept.contains(slot)) return;
      weights.push_back(&tensors_[slot]);
    }
    const ModelSpec& spec = checkpoint_.spec();
    const Statistics& input = statistics_.at(group.input);
    ColumnSharing sharing;
    if (group.feeder == "attn_v.weight") sharing = {spec.head_dim, spec.heads / spec.kv_heads};
    const std::vector<float> s = method == Method::int8
                                     ? smoothing_scales(weights, input.range(), plan_.settings.smoothing)
                                     : search_scales(weights, input, plan_.grid, sharing, tools_.products);
    for (const std::string& slot : group.slots)
      for (int64_t r = 0; r < tensors_[slot].rows; r++)
        for (size_t c = 0; c < s.size(); c++) tensors_[slot].row(r)[c] *= s[c];
    factors_[group.input] = s;
    norm ? divide_norm(group.norm, s) : divide_feeder(group.feeder, s, sharing);
  }

  void divide_norm(const std::string& name, const std::vector<float>& s) {
    for (size_t c = 0; c < s.size(); c++) tensors_[name].values[c] /= s[c];
    changed_.push_back(name);
  }

  // The feeder's output r reaches the columns that share a head with it, which have one factor.
  void divide_feeder(const std::string& name, const std::vector<float>& s, const ColumnSharing& sharing) {
    Matrix& w = tensors_[name];
    const auto factor = [&](int64_t r) {
      return s[size_t(sharing.run ? r / sharing.run * sharing.run * sharing.heads + r % sharing.run : r)];
    };
    for (int64_t r = 0; r < w.rows; r++)
      for (float& v : w.row(r)) v /= factor(r);
    changed_.push_back(name);
    if (name != "attn_v.weight" || !tensors_.contains("attn_v.bias")) return;
    for (int64_t r = 0; r < w.rows; r++) tensors_["attn_v.bias"].values[size_t(r)] /= factor(r);
    changed_.push_back("attn_v.bias");
  }

  // The second moments of an input whose channels were divided by the factors.
  Statistics& divided(Input input) {
    Statistics& s = statistics_.at(input);
    if (const auto f = factors_.find(input); f != factors_.end()) s.divide(f->second), factors_.erase(f);
    return s;
  }

  const Compensation& compensation(Input input) {
    auto known = compensations_.find(input);
    if (known == compensations_.end())
      known = compensations_
                  .emplace(input, compensation_of(statistics_.at(input).hessian(), plan_.settings.damping,
                                                  tools_.threads))
                  .first;
    return known->second;
  }

  Quantized quantized(const LinearGroup& group, const std::string& slot) {
    const Matrix& w = tensors_[slot];
    const Grid grid = plan_.grid_for(w.cols);
    switch (plan_.settings.method) {
      case Method::fp8:
        return plan_.settings.compensated
                   ? compensate_float8(w, compensation(group.input), plan_.settings.block, tools_.threads)
                   : to_float8(w, plan_.settings.block);
      case Method::awq:
        // Clipped queries and keys would move attention's scores, which react more than sums do (as published).
        if (plan_.settings.clip && slot != "attn_q.weight" && slot != "attn_k.weight" &&
            slot != "attn_qkv.weight")
          return round_to_nearest(w, search_clips(w, divided(group.input), grid, tools_.threads), grid);
        return round_to_nearest(w, grid);
      case Method::gptq:
        return quantize_gptq(w, compensation(group.input), grid, tools_.threads);
      case Method::rtn:
      case Method::int8:
        break;
    }
    return round_to_nearest(w, grid);
  }

  const Checkpoint& checkpoint_;
  const int layer_;
  const Plan& plan_;
  LayerStatistics& statistics_;
  LayerTools tools_;
  Replacements tensors_;
  std::vector<std::string> changed_;
  std::map<Input, std::vector<float>> factors_;
  std::map<Input, Compensation> compensations_;
  QuantizedLayer out_;
};

}  // namespace

Status check_finite(const Checkpoint& checkpoint, const std::string& slot, int64_t row,
                    std::span<const float> values) {
  const std::optional<float> bad = first_not_finite(values);
  if (!bad) return {};
  return Error{ErrorCode::kCorrupt, fmt::format("{}: tensor {} holds {} in row {}; the model is damaged",
                                                checkpoint.path(), shown(slot), *bad, row)};
}

Result<Matrix> read_tensor(const Checkpoint& checkpoint, const std::string& slot) {
  const std::unique_ptr<RowSource> source = checkpoint.rows(slot);
  CHECK(source != nullptr, "checked at opening");
  const std::vector<int32_t> order = checkpoint.row_order(slot);
  Matrix out(source->rows(), source->cols());
  DecodedRow scratch;
  for (int64_t r = 0; r < out.rows; r++) {
    const int64_t stored = out.rows > 1 && !order.empty() ? order[size_t(r)] : r;
    decode_f32(*source, stored, scratch, out.row(r).data());
    if (Status finite = check_finite(checkpoint, slot, stored, out.row(r)); !finite)
      return std::move(finite).error();
  }
  if (out.rows == 1 && !order.empty()) {
    const std::vector<float> stored = out.values;
    for (size_t i = 0; i < stored.size(); i++) out.values[i] = stored[size_t(order[i])];
  }
  checkpoint.release(slot);
  return out;
}

LayerStatistics statistics_for(const Plan& plan, const ModelSpec& s) {
  LayerStatistics out;
  if (!plan.calibrated()) return out;
  const bool hessian = plan.settings.method != Method::int8;
  for (const LinearGroup& group : plan.groups) {
    const int64_t columns = group.input == Input::attention_output ? int64_t(s.heads) * s.head_dim
                            : group.input == Input::down           ? s.ffn
                                                                   : s.hidden;
    out.try_emplace(group.input, columns, plan.settings.observer, hessian);
  }
  return out;
}

Result<QuantizedLayer> quantize_layer(const Checkpoint& checkpoint, int layer, const Plan& plan,
                                      LayerStatistics& statistics, LayerTools tools) {
  return Layer(checkpoint, layer, plan, statistics, tools).run();
}

Replacements dequantized(const QuantizedLayer& layer) {
  Replacements out;
  for (const auto& [slot, m] : layer.matrices)
    out.emplace(slot, std::visit([](const auto& matrix) { return dequantize(matrix); }, m));
  for (const auto& [slot, m] : layer.replaced) out.emplace(slot, m);
  return out;
}

}  // namespace sluice::quantize
