#include "quantize/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/slots.h"

namespace sluice::quantize {
namespace {

constexpr int64_t kLeastGroup = 32;

Error wrong(const char* field, std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message), field};
}

std::vector<LinearGroup> groups_of(const ModelSpec& s, bool all_targets) {
  std::vector<LinearGroup> out;
  const bool fused = s.fused_projections;
  if (all_targets) {
    out.push_back({Input::qkv,
                   fused ? std::vector<std::string>{"attn_qkv.weight"}
                         : std::vector<std::string>{"attn_q.weight", "attn_k.weight", "attn_v.weight"},
                   "attn_norm.weight", ""});
    out.push_back({Input::attention_output, {"attn_output.weight"}, "", fused ? "" : "attn_v.weight"});
  }
  if (s.experts > 0) {
    for (int e = 0; e < s.experts; e++) {
      const std::string tail = fmt::format(".{}.weight", e);
      out.push_back({Input::gate_up, {"ffn_gate" + tail, "ffn_up" + tail}, "", ""});
      out.push_back({Input::down, {"ffn_down" + tail}, "", ""});
    }
    return out;
  }
  out.push_back({Input::gate_up,
                 fused ? std::vector<std::string>{"ffn_up.weight"}
                       : std::vector<std::string>{"ffn_gate.weight", "ffn_up.weight"},
                 "ffn_norm.weight", ""});
  out.push_back({Input::down, {"ffn_down.weight"}, "", fused ? "" : "ffn_up.weight"});
  return out;
}

Result<Layout> layout_of(const Settings& s) {
  if (s.layout.empty()) {
    switch (s.method) {
      case Method::rtn:
      case Method::awq:
        return s.bits == 4 ? Layout::awq : Layout::gptq;
      case Method::gptq:
        return Layout::gptq;
      case Method::int8:
        return Layout::compressed;
      case Method::fp8:
        return s.block ? Layout::fp8 : Layout::compressed;
    }
  }
  Layout layout = Layout::awq;
  for (const Layout l : {Layout::awq, Layout::gptq, Layout::compressed, Layout::fp8, Layout::gguf})
    if (s.layout == layout_name(l)) layout = l;
  const bool floats = s.method == Method::fp8;
  const bool fits = floats ? (s.block ? layout == Layout::fp8 : layout == Layout::compressed)
                    : s.method == Method::int8 ? layout == Layout::compressed || layout == Layout::gguf
                    : layout == Layout::awq    ? s.bits == 4
                                               : layout != Layout::fp8;
  if (fits) return layout;
  return wrong("layout", fmt::format("{} cannot hold what {} with {} bits{} makes", s.layout,
                                     method_name(s.method), s.bits, s.block ? " in blocks" : ""));
}

Status settle(Settings& s) {
  const bool eight = s.method == Method::int8 || s.method == Method::fp8;
  if (s.bits == 0) s.bits = eight ? 8 : 4;
  if (s.bits != 4 && s.bits != 8)
    return wrong("bits", fmt::format("{} is not supported (4 and 8 are)", s.bits));
  if (eight && s.bits != 8) return wrong("bits", fmt::format("{} has 8", method_name(s.method)));
  if (s.block != 0 && s.block != 128) return wrong("block", "0 (a scale per output) or 128 is expected");
  if (s.compensated && s.method != Method::fp8)
    return wrong("calibration", "is compensated by gptq and fp8 alone");
  if (s.block != 0 && s.method != Method::fp8) return wrong("block", "goes with fp8 alone");
  if (s.group < kLeastGroup || s.group > 1024 || (s.group & (s.group - 1)) != 0)
    return wrong("group-size",
                 fmt::format("{} is not supported (32, 64, 128, 256, 512 and 1024 are)", s.group));
  return {};
}

}  // namespace

const char* method_name(Method method) {
  constexpr const char* kNames[] = {"rtn", "awq", "gptq", "int8", "fp8"};
  return kNames[size_t(method)];
}

const char* layout_name(Layout layout) {
  constexpr const char* kNames[] = {"awq", "gptq", "compressed-tensors", "fp8", "gguf"};
  return kNames[size_t(layout)];
}

Grid Plan::grid_for(int64_t columns) const {
  Grid out = grid;
  if (out.group == 0) out.group = columns;
  return out;
}

Result<Plan> make_plan(const Checkpoint& checkpoint, const Settings& settings) {
  Plan plan;
  plan.settings = settings;
  Settings& s = plan.settings;
  if (Status settled = settle(s); !settled) return std::move(settled).error();
  Result<Layout> layout = layout_of(s);
  if (!layout) return layout.error();
  plan.layout = *layout;
  const ModelSpec& spec = checkpoint.spec();
  if (spec.experts > 0 && plan.calibrated())
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: mixtures of experts are quantized by rtn and fp8 only", checkpoint.path()),
                 "method"};
  if (plan.layout == Layout::gguf && (!checkpoint.gguf() || spec.experts > 0))
    return Error{
        ErrorCode::kUnsupported,
        fmt::format("{}: GGUF is written from a GGUF file of a model without experts; choose another layout",
                    checkpoint.path()),
        "layout"};
  plan.groups = groups_of(spec, s.all_targets);
  if (s.method == Method::fp8) return plan;

  const bool gguf = plan.layout == Layout::gguf, whole_rows = s.method == Method::int8 && !gguf;
  int64_t group = gguf ? kLeastGroup : s.group;
  std::set<std::string, std::less<>> targets;
  for (const LinearGroup& g : plan.groups) targets.insert(g.slots.begin(), g.slots.end());
  for (const Slot& slot : slots_of(spec)) {
    const std::string rest(slot_place(slot.name).rest);
    if (!targets.contains(rest)) continue;
    if (slot.cols % kLeastGroup != 0 || slot.rows % 8 != 0)
      plan.kept.insert(rest);
    else
      while (slot.cols % group != 0) group /= 2;
  }
  if (plan.kept.size() == targets.size())
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: no matrix of this model has a width that groups of {} divide",
                             checkpoint.path(), kLeastGroup),
                 "group-size"};
  // Packed zero points are in the compressed-tensors layout, but transformers 5.24 makes room for unpacked ones
  // and refuses them: what is written there has none.
  plan.grid = {.bits = s.bits,
               .group = whole_rows ? 0 : group,
               .symmetric = plan.layout == Layout::compressed || (gguf && s.bits == 8),
               .least_zero = uint8_t(plan.layout == Layout::gptq)};
  return plan;
}

}  // namespace sluice::quantize
