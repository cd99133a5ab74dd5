// config.json's quantization_config in numbers.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <optional>

#include "model/formats/quantized_linear.h"
#include "model/formats/shown.h"

namespace sluice {
namespace {

// One key of quantization_config after the other; the first complaint is kept.
class Settings {
 public:
  Settings(const JsonValues& config, std::string section, const std::string& path)
      : config_(config), section_(std::move(section)), path_(path) {}

  std::string text(const std::string& key, const char* fallback) const {
    return std::string(config_.string(full(key)).value_or(fallback));
  }
  int integer(const std::string& key, int fallback) const {
    return int(std::clamp(config_.number(full(key)).value_or(fallback), double(INT_MIN), double(INT_MAX)));
  }
  bool flag(const std::string& key, bool fallback) const {
    return config_.boolean(full(key)).value_or(fallback);
  }
  std::vector<double> numbers(const std::string& key) const { return config_.numbers(full(key)); }
  bool has(const std::string& key) const { return config_.has(full(key)); }
  void refuse(const std::string& key, const std::string& why) {
    if (!error_)
      error_ = Error{ErrorCode::kUnsupported, fmt::format("{}: key {}: {}", path_, shown(full(key)), why)};
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  std::string full(const std::string& key) const { return section_ + "." + key; }
  const JsonValues& config_;
  const std::string section_, &path_;
  std::optional<Error> error_;
};

void read_integers(Settings& s, Quantization& q) {
  const bool awq = q.method == Quantization::Method::awq;
  q.bits = s.integer("bits", s.integer("w_bit", 4));
  if (q.bits != 4 && (awq || q.bits != 8))
    s.refuse("bits", fmt::format("{} is not supported ({})", q.bits, awq ? "4 is" : "4 and 8 are"));
  const int group = s.integer("group_size", s.integer("q_group_size", 128));
  q.group = std::max(group, 0);
  if (group != -1 && group != 16 && (group < 32 || group % 32 != 0 || group > (1 << 20)))
    s.refuse("group_size",
             fmt::format("{} is not supported (16, multiples of 32, and -1 for whole rows are)", group));
  if (awq) {
    if (const std::string version = s.text("version", "gemm"); version != "gemm" && version != "GEMM")
      s.refuse("version", fmt::format("layout {} is not supported (gemm is)", shown(version)));
    if (!s.flag("zero_point", true)) s.refuse("zero_point", "false is not supported");
    return;
  }
  const std::string layout = s.text("checkpoint_format", "gptq");
  if (layout != "gptq" && layout != "gptq_v2")
    s.refuse("checkpoint_format", fmt::format("{} is not supported (gptq and gptq_v2 are)", shown(layout)));
  q.zeros_less_one = layout == "gptq";
}

void read_fp8(Settings& s, Quantization& q) {
  q.bits = 8;
  if (const std::string layout = s.text("fmt", "e4m3"); layout != "e4m3")
    s.refuse("fmt", fmt::format("{} is not supported (e4m3 is)", shown(layout)));
  const std::vector<double> block = s.numbers("weight_block_size");
  if (block.empty()) return;
  const auto fits = [](double v) { return v >= 1 && v <= (1 << 20) && v == int(v); };
  if (block.size() != 2 || !fits(block[0]) || !fits(block[1]))
    return s.refuse("weight_block_size", "two sizes are expected");
  q.block_rows = int(block[0]), q.block_cols = int(block[1]);
}

// The group's settings say what kinds of scale there are; which of them a layer has, its tensors show.
void read_scheme(Settings& s, const std::string& group, Quantization& q) {
  const std::string weights = group + ".weights.";
  const int bits = s.integer(weights + "num_bits", 8);
  const std::string type = s.text(weights + "type", "int"), strategy = s.text(weights + "strategy", "channel");
  if (type == "float" ? bits != 8 : bits != 4 && bits != 8)
    s.refuse(weights + "num_bits",
             fmt::format("{} with type {} is not supported (integers of 4 and 8 bits and floats "
                         "of 8 are)",
                         bits, shown(type)));
  if (strategy != "tensor" && strategy != "channel" && strategy != "group" && strategy != "block")
    s.refuse(weights + "strategy",
             fmt::format("{} is not supported (tensor, channel, group and block are)", shown(strategy)));
  if (s.has(group + ".output_activations"))
    s.refuse(group + ".output_activations", "quantized outputs of layers are not supported");
  if (strategy != "block") return;
  const std::vector<double> block = s.numbers(weights + "block_structure");
  const auto fits = [](double v) { return v >= 1 && v <= (1 << 20) && v == int(v); };
  if (block.size() != 2 || !fits(block[0]) || !fits(block[1]))
    return s.refuse(weights + "block_structure", "two sizes are expected");
  if (q.block_rows && (q.block_rows != int(block[0]) || q.block_cols != int(block[1])))
    return s.refuse(weights + "block_structure", "blocks of several sizes in one model are not supported");
  q.block_rows = int(block[0]), q.block_cols = int(block[1]);
}

void read_compressed(Settings& s, Quantization& q) {
  q.bits = 8;
  const std::string format = s.text("format", "unknown");
  constexpr std::string_view kFormats[] = {"pack-quantized", "int-quantized", "float-quantized",
                                           "naive-quantized", "mixed-precision"};
  if (std::find(std::begin(kFormats), std::end(kFormats), format) == std::end(kFormats))
    s.refuse("format", fmt::format("{} is not supported ({} are)", shown(format), fmt::join(kFormats, ", ")));
  if (const std::string sparse = s.text("sparsity_config.format", "dense"); sparse != "dense")
    s.refuse("sparsity_config.format", fmt::format("{} is not supported (dense is)", shown(sparse)));
  int groups = 0;
  for (std::string group; s.has(group = fmt::format("config_groups.group_{}", groups)); ++groups)
    read_scheme(s, group, q);
  if (groups == 0) s.refuse("config_groups", "'group_0' is expected in it");
}

}  // namespace

Result<Quantization> read_quantization(const JsonValues& config, const std::string& path) {
  std::string section;
  for (const char* name : {"quantization_config", "text_config.quantization_config"}) {
    if (config.has(name)) section = name;
  }
  Quantization q;
  if (section.empty()) return q;
  Settings s(config, section, path);
  const std::string method = s.text("quant_method", "unknown");
  if (method == "awq") {
    q.method = Quantization::Method::awq;
  } else if (method == "gptq") {
    q.method = Quantization::Method::gptq;
  } else if (method == "fp8") {
    q.method = Quantization::Method::fp8;
  } else if (method == "compressed-tensors") {
    q.method = Quantization::Method::compressed;
  } else {
    s.refuse("quant_method",
             fmt::format("{} is not supported (awq, gptq, fp8 and compressed-tensors are); use such a folder, "
                         "an unquantized one or a GGUF file",
                         shown(method)));
  }
  if (!s.error()) {
    switch (q.method) {
      case Quantization::Method::fp8:
        read_fp8(s, q);
        break;
      case Quantization::Method::compressed:
        read_compressed(s, q);
        break;
      default:
        read_integers(s, q);
    }
  }
  if (s.error()) return *s.error();
  return q;
}

}  // namespace sluice
