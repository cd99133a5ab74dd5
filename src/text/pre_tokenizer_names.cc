// The split patterns behind tokenizer.ggml.pre names. The patterns are facts of the published tokenizers; where
// GGUF files are tokenized differently from the tokenizer.json they came from, the reading here is that of
// llama.cpp, since such files are judged by it.
#include <fmt/format.h>

#include <string>

#include "text/pre_tokenizer.h"

namespace sluice {
namespace {

constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)";
const std::string kContractions = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const std::string kSpaces = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kThreeDigits = "\\p{N}{1,3}", kOneDigit = "\\p{N}";

// The shape that Llama 3, Qwen and their kin share; they differ in how many digits make a piece.
std::string llama3(std::string_view digits) {
  return kContractions + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" + std::string(digits) +
         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" + kSpaces;
}

// Pieces also end where the case changes: GPT-4o, Llama 4, Mistral's Tekken.
std::string cased(const std::string& contractions, std::string_view digits) {
  const std::string start = "[^\\r\\n\\p{L}\\p{N}]?", upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]",
                    lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
  return start + upper + "*" + lower + "+" + contractions + "|" + start + upper + "+" + lower + "*" +
         contractions + "|" + std::string(digits) + "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" + kSpaces;
}

std::string qwen35() {
  return kContractions + "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" +
         kSpaces;
}

std::string deepseek3() {
  return "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
         "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" +
         kSpaces;
}

struct Family {
  std::vector<std::string_view> names;
  std::vector<std::string> patterns;
  bool ignore_merges = false;
  bool add_bos = false;
};

const std::vector<Family>& families() {
  static const std::string gpt2(kGpt2);
  static const std::vector<Family> all = {
      {{"gpt-2", "gpt2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
        "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion", "granite-docling", "roberta-bpe"},
       {gpt2}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {"\\p{N}", gpt2}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"},
       {llama3(kThreeDigits)},
       true,
       true},
      {{"dbrx", "smaug-bpe", "glm4", "glm5", "chatglm-bpe"}, {llama3(kThreeDigits)}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "solar-open", "megrez",
        "grok-2"},
       {llama3(kOneDigit)}},
      {{"qwen35"}, {qwen35()}},
      {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {cased(kContractions + "?", kThreeDigits)}},
      {{"tekken"}, {cased("", kOneDigit)}, true, true},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"}, {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", deepseek3()}},
      {{"deepseek-coder"}, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+", "\\p{N}"}},
      {{"falcon"}, {"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2, "[0-9][0-9][0-9]"}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"},
       {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
      {{"default", ""}, {"[\\p{P}\\$\\+<=>\\^~\\|]+", gpt2, "\\p{N}+", "[0-9][0-9][0-9]"}},
  };
  return all;
}

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }

Result<PreTokenizerTraits> pre_tokenizer_traits(std::string_view name) {
  for (const Family& family : families()) {
    for (const std::string_view known : family.names) {
      if (known != name) continue;
      PreTokenizerTraits out;
      for (const std::string& p : family.patterns) out.splits.push_back({.regex = p});
      out.ignore_merges = family.ignore_merges;
      out.add_bos = family.add_bos;
      return out;
    }
  }
  return Error{ErrorCode::kUnsupported, fmt::format("unknown pre-tokenizer '{}' (tokenizer.ggml.pre)", name)};
}

}  // namespace sluice
