#include "quantize/folder_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/formats/json_text.h"
#include "model/formats/json_values.h"
#include "model/formats/rows.h"
#include "model/formats/shown.h"

namespace sluice::quantize {
namespace {

std::string list_of(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& n : names) out += (out.size() > 1 ? ", " : "") + json_text(n);
  return out + "]";
}

std::string compressed_config(const Plan& plan, std::vector<std::string> kept) {
  const Settings& s = plan.settings;
  const bool floats = s.method == Method::fp8, activations = floats || s.method == Method::int8;
  const bool group = !floats && plan.grid.group > 0;
  kept.insert(kept.begin(), "lm_head");
  std::string weights = fmt::format(
      R"("num_bits": {}, "type": "{}", "symmetric": {}, "strategy": "{}", "group_size": {}, "dynamic": false)",
      s.bits, floats ? "float" : "int", floats || plan.grid.symmetric, group ? "group" : "channel",
      group ? std::to_string(plan.grid.group) : "null");
  const std::string inputs =
      activations ? fmt::format(R"({{"num_bits": 8, "type": "{}", "symmetric": true, "strategy": "token", )"
                                R"("dynamic": true}})",
                                floats ? "float" : "int")
                  : "null";
  return fmt::format(
      R"({{"quant_method": "compressed-tensors", "format": "{}", "quantization_status": "compressed", )"
      R"("config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {{{}}}, "input_activations": {}, )"
      R"("output_activations": null}}}}, "ignore": {}, "kv_cache_scheme": null}})",
      floats        ? "float-quantized"
      : activations ? "int-quantized"
                    : "pack-quantized",
      weights, inputs, list_of(kept));
}

}  // namespace

Error quantized_already(const std::string& file, const char* key) {
  return {ErrorCode::kUnsupported,
          fmt::format("{}: key {}: this model is quantized already; give the one that it was made from", file,
                      shown(key))};
}

std::string quantization_config(const Plan& plan, const LinearNames& names) {
  const std::vector<std::string>& kept = names.kept;
  switch (plan.layout) {
    case Layout::awq:
      return fmt::format(
          R"({{"quant_method": "awq", "bits": 4, "group_size": {}, "zero_point": true, "version": "gemm", )"
          R"("modules_to_not_convert": {}}})",
          plan.grid.group, kept.empty() ? "null" : list_of(kept));
    case Layout::gptq: {
      // This layout has no list of what stays.
      std::string blocks;
      for (const auto& block : names.quantized) blocks += (blocks.empty() ? "" : ", ") + list_of(block);
      if (!kept.empty()) blocks = fmt::format(R"(, "modules_in_block_to_quantize": [{}])", blocks);
      return fmt::format(
          R"({{"quant_method": "gptq", "bits": {}, "group_size": {}, "desc_act": false, "sym": false, )"
          R"("checkpoint_format": "gptq"{}{}}})",
          plan.settings.bits, plan.grid.group,
          plan.settings.method == Method::gptq ? fmt::format(R"(, "damp_percent": {})", plan.settings.damping)
                                               : "",
          kept.empty() ? "" : blocks);
    }
    case Layout::fp8:
      return fmt::format(
          R"({{"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [{0}, {0}], )"
          R"("modules_to_not_convert": {1}}})",
          plan.settings.block, list_of(kept));
    case Layout::compressed:
      return compressed_config(plan, kept);
    case Layout::gguf:
      break;
  }
  return "null";
}

Result<std::string> extended_config(const std::string& config, const std::string& path,
                                    const std::string& members) {
  Result<JsonValues> values = JsonValues::parse(config, path);
  if (!values) return values.error();
  for (const char* key : {"quantization_config", "text_config.quantization_config", "sluice_quantization"})
    if (values->has(key)) return quantized_already(path, key);
  const size_t brace = config.rfind('}');
  CHECK(brace != std::string::npos, "parsed as an object");
  std::string out = config.substr(0, brace);
  out.erase(out.find_last_not_of(" \t\r\n") + 1);
  return out + (out.back() == '{' ? "\n" : ",\n") + members + "\n}\n";
}

Result<ModelSpec> spec_of_config(const Checkpoint& checkpoint) {
  ModelSpec spec = checkpoint.spec();
  const std::unique_ptr<RowSource> source = checkpoint.rows("rope_freqs.weight");
  if (!source) return spec;
  std::vector<float> divisors(size_t(source->cols()));
  DecodedRow scratch;
  decode_f32(*source, 0, scratch, divisors.data());
  const std::vector<float> plain = spec.rope.inverse_frequencies(spec.head_dim);
  for (const float factor : {8.0f, 32.0f}) {
    RopeSpec rope = spec.rope;
    rope.scaling = RopeSpec::Scaling::llama3;
    rope.factor = factor, rope.low_freq_factor = 1, rope.high_freq_factor = 4, rope.original_context = 8192;
    const std::vector<float> scaled = rope.inverse_frequencies(spec.head_dim);
    bool same = divisors.size() == plain.size();
    for (size_t i = 0; same && i < plain.size(); i++)
      same = std::abs(plain[i] / scaled[i] - divisors[i]) <= 1e-3f * divisors[i];
    if (!same) continue;
    spec.rope = rope;
    return spec;
  }
  return Error{
      ErrorCode::kUnsupported,
      fmt::format("{}: tensor rope_freqs.weight: a scaling of rotation that config.json has no name for; "
                  "start from the Hugging Face folder, or write a GGUF file",
                  checkpoint.path())};
}

Result<std::string> config_from_numbers(const ModelSpec& s, const std::string& path,
                                        const std::string& members) {
  struct Known {
    const char *family, *type, *architecture;
  };
  constexpr Known kKnown[] = {{"llama", "llama", "LlamaForCausalLM"},
                              {"qwen2", "qwen2", "Qwen2ForCausalLM"},
                              {"qwen3", "qwen3", "Qwen3ForCausalLM"},
                              {"gemma3", "gemma3_text", "Gemma3ForCausalLM"}};
  const auto known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                  [&](const Known& k) { return s.architecture == k.family; });
  const auto refuse = [&](const std::string& why) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: {}; start from the Hugging Face folder, or write a GGUF file", path, why)};
  };
  if (known == std::end(kKnown) || s.experts > 0)
    return refuse(
        fmt::format("a folder's config.json is not written for {} models out of GGUF (for llama, qwen2, qwen3 "
                    "and gemma3 it is)",
                    s.architecture));
  if (s.rope.rotary != 0 && s.rope.rotary != s.head_dim) return refuse("heads that rotate in part");
  if (s.architecture != "gemma3" && s.window > 0) return refuse("a window of attention");
  std::string out = fmt::format(
      "{{\n  \"architectures\": [\"{}\"],\n  \"model_type\": \"{}\",\n  \"hidden_size\": {},\n"
      "  \"intermediate_size\": {},\n  \"num_hidden_layers\": {},\n  \"num_attention_heads\": {},\n"
      "  \"num_key_value_heads\": {},\n  \"head_dim\": {},\n  \"vocab_size\": {},\n"
      "  \"max_position_embeddings\": {},\n  \"rms_norm_eps\": {},\n  \"tie_word_embeddings\": {},\n",
      known->architecture, known->type, s.hidden, s.ffn, s.layers, s.heads, s.kv_heads, s.head_dim, s.vocab,
      s.context, s.norm_eps, s.tied_head);
  // Gemma's activations do not fit f16.
  out += fmt::format("  \"attention_bias\": false,\n  \"torch_dtype\": \"{}\",\n",
                     s.architecture == "gemma3" ? "bfloat16" : "float16");
  std::string scaling;
  if (s.rope.scaling == RopeSpec::Scaling::linear)
    scaling =
        fmt::format("  \"rope_scaling\": {{\"rope_type\": \"linear\", \"factor\": {}}},\n", s.rope.factor);
  if (s.rope.scaling == RopeSpec::Scaling::llama3)
    scaling = fmt::format(
        "  \"rope_scaling\": {{\"rope_type\": \"llama3\", \"factor\": {}, \"low_freq_factor\": {}, "
        "\"high_freq_factor\": {}, \"original_max_position_embeddings\": {}}},\n",
        s.rope.factor, s.rope.low_freq_factor, s.rope.high_freq_factor, s.rope.original_context);
  out += fmt::format("  \"rope_theta\": {},\n", s.rope.base) + scaling;
  if (s.architecture == "gemma3") {
    std::string types;
    for (int l = 0; l < s.layers; l++)
      types += fmt::format("{}\"{}_attention\"", l ? ", " : "", s.layer_windowed(l) ? "sliding" : "full");
    out += fmt::format(
        "  \"hidden_activation\": \"gelu_pytorch_tanh\",\n  \"rope_local_base_freq\": {},\n  "
        "\"sliding_window\": {},\n"
        "  \"layer_types\": [{}],\n  \"query_pre_attn_scalar\": {},\n",
        s.local_rope.base, s.window, types,
        std::lround(1 / (double(s.attention_scale) * double(s.attention_scale))));
  } else {
    out += "  \"hidden_act\": \"silu\",\n";
  }
  return out + members + "\n}\n";
}

}  // namespace sluice::quantize
