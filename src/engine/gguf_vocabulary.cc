#include "engine/gguf_vocabulary.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string key_of(std::string_view name) { return std::string(kPrefix) + std::string(name); }

Error broken(const GgufFile& file, std::string_view key, std::string_view what) {
  return {ErrorCode::kCorrupt, fmt::format("{}: {}: {}", file.path(), key_of(key), what)};
}

// An id, or -1 where the key is absent. Files say 2^32 - 1 for "none" where a token is not needed; the end of a
// text is.
Status read_id(const GgufFile& file, std::string_view name, size_t count, bool may_be_none, int32_t& id) {
  id = -1;
  if (!file.has(key_of(name))) return {};
  const double value = file.number(key_of(name)).value_or(-1);
  if (may_be_none && value == double(std::numeric_limits<uint32_t>::max())) return {};
  if (!(value >= 0 && value < double(count) && value == std::floor(value)))
    return broken(file, name,
                  fmt::format("must be one of the file's {} tokens; correct or remove the key", count));
  id = int32_t(value);
  return {};
}

Status read_ids(const GgufFile& file, VocabularyData& v) {
  const size_t count = v.tokens.size();
  int32_t eom = -1;
  Status read = read_id(file, "bos_token_id", count, true, v.bos_id);
  if (read) read = read_id(file, "eos_token_id", count, false, v.eos_id);
  if (read) read = read_id(file, "eot_token_id", count, true, v.eot_id);
  if (read) read = read_id(file, "unknown_token_id", count, true, v.unk_id);
  // Padding is never asked for, and published files name one beyond their tokens.
  if (!read_id(file, "padding_token_id", count, true, v.pad_id)) v.pad_id = -1;
  if (read) read = read_id(file, "eom_token_id", count, true, eom);
  if (eom >= 0) v.end_of_generation_ids.push_back(eom);
  return read;
}

Result<VocabularyKind> kind_of(const GgufFile& file) {
  const auto model = file.string(key_of("model"));
  if (!model)
    return broken(file, "model", "missing: the file holds no tokenizer; convert it again with its vocabulary");
  if (*model == "gpt2") return VocabularyKind::kByteLevelBpe;
  if (*model == "llama" || *model == "gemma4") return VocabularyKind::kSentencePieceBpe;
  if (*model == "t5") return VocabularyKind::kUnigram;
  return Error{ErrorCode::kUnsupported,
               fmt::format("{}: {}: this kind of tokenizer is not supported (gpt2, llama and t5 are)",
                           file.path(), key_of("model"))};
}

Status read_lists(const GgufFile& file, VocabularyData& v) {
  for (std::string_view token : file.strings(key_of("tokens"))) v.tokens.emplace_back(token);
  if (v.tokens.empty()) return broken(file, "tokens", "missing or empty");
  for (std::string_view merge : file.strings(key_of("merges"))) v.merges.emplace_back(merge);
  for (double score : file.numbers(key_of("scores"))) v.scores.push_back(float(score));
  if (!v.scores.empty() && v.scores.size() != v.tokens.size())
    return broken(file, "scores", "not one per token");
  for (double type : file.numbers(key_of("token_type"))) {
    if (!(type >= double(TokenType::kNormal) && type <= double(TokenType::kByte)))
      return broken(file, "token_type", "a type that is not 1..6");
    v.types.push_back(TokenType(uint8_t(type)));
  }
  if (!v.types.empty() && v.types.size() != v.tokens.size())
    return broken(file, "token_type", "not one per token");
  return {};
}

}  // namespace

Result<VocabularyData> gguf_vocabulary(const GgufFile& file) {
  VocabularyData v;
  const auto kind = kind_of(file);
  if (!kind) return kind.error();
  v.kind = *kind;
  if (Status read = read_lists(file, v); !read) return std::move(read).error();
  v.pre = std::string(file.string(key_of("pre")).value_or("default"));

  if (Status read = read_ids(file, v); !read) return std::move(read).error();
  v.add_bos = file.boolean(key_of("add_bos_token"));
  v.add_eos = file.boolean(key_of("add_eos_token"));
  v.add_space_prefix = file.boolean(key_of("add_space_prefix"));
  if (v.kind == VocabularyKind::kUnigram) {
    std::string map;
    for (double byte : file.numbers(key_of("precompiled_charsmap"))) map += char(uint8_t(byte));
    if (!map.empty()) v.normalizers.push_back({NormalizeStep::Kind::kPrecompiled, std::move(map)});
    if (file.boolean(key_of("remove_extra_whitespaces")).value_or(false))
      v.normalizers.push_back({NormalizeStep::Kind::kCollapseSpaces});
  }
  return v;
}

}  // namespace sluice
