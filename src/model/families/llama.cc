// Llama 2, 3 and 3.x, SmolLM2, and every model published under this architecture: the plain decoder.
// Source: the Llama 2 and 3 papers; transformers' modeling_llama for names and defaults.
#include "model/families/family.h"

namespace sluice {
namespace {

// GGUF: Llama 3's frequency scaling comes as a tensor (rope_freqs.weight, divisors of the frequencies), which
// load_weights applies. Mistral's older models are published under this name too, with a window, and Mixtral.
void read_gguf(const GgufFile& file, Numbers& n, ModelSpec& spec) {
  spec.rope = read_gguf_rope(n, 10000);
  read_gguf_experts(n, spec);
  spec.qkv_bias = file.tensor("blk.0.attn_q.bias") != nullptr;
}

void read_config(Numbers& n, ModelSpec& spec) {
  read_config_sizes(n, {}, spec);
  spec.rope = read_config_rope(n, "rope_parameters", "rope_theta", "rope_scaling", 10000);
  refuse_flag(n, "attention_bias");  // it would put a bias on the output projection too
  refuse_flag(n, "mlp_bias");
}

constexpr std::string_view kTypes[] = {"llama"};

}  // namespace

// GGUF's converter reorders q and k for a rotation of neighbours; Hugging Face's files are half-split already.
const Family kLlama = {.name = "llama",
                       .gguf_architecture = "llama",
                       .model_types = kTypes,
                       .read_gguf = read_gguf,
                       .read_config = read_config,
                       .layer_names = kDenseLayerNames,
                       .gguf_interleaves = true};

}  // namespace sluice
