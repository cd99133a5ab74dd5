#include "text/tokenizer_json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "text/pre_tokenizer.h"

namespace sluice {
namespace {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (uint8_t(c) < 0x20)
      out += fmt::format("\\u{:04x}", int(c));
    else
      out += c;
  }
  return out + '"';
}

TokenType type_of(const VocabularyData& v, size_t id) {
  return v.types.empty() ? TokenType::kNormal : v.types[id];
}

std::string added_tokens(const VocabularyData& v) {
  std::string out;
  for (size_t id = 0; id < v.tokens.size(); id++) {
    const TokenType type = type_of(v, id);
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown;
    if (!special && type != TokenType::kUserDefined) continue;
    out += fmt::format(
        R"({}{{"id":{},"content":{},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":{}}})",
        out.empty() ? "" : ",", id, quoted(v.tokens[id]), special);
  }
  return out;
}

// Which pairs SentencePiece joins: any two tokens that make a third, the best third first.
std::vector<std::pair<std::string, std::string>> merges_by_score(const VocabularyData& v) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < v.tokens.size(); id++)
    if (type_of(v, id) == TokenType::kNormal) ids.emplace(v.tokens[id], id);
  struct Merge {
    float score;
    size_t whole, left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : ids) {
    for (size_t cut = 1; cut < text.size(); cut++) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end())
        merges.push_back({v.scores.empty() ? -float(id) : v.scores[id], id, left->second, right->second});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.whole, a.left, a.right) < std::tuple(-b.score, b.whole, b.left, b.right);
  });
  std::vector<std::pair<std::string, std::string>> out;
  for (const Merge& m : merges) out.emplace_back(v.tokens[m.left], v.tokens[m.right]);
  return out;
}

std::string bpe_model(const VocabularyData& v, bool bytes) {
  std::string vocab, merges;
  for (size_t id = 0; id < v.tokens.size(); id++)
    vocab += fmt::format("{}{}:{}", id ? "," : "", quoted(v.tokens[id]), id);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& m : v.merges) {
    const size_t space = m.find(' ', 1);
    pairs.emplace_back(m.substr(0, space), m.substr(space + 1));
  }
  if (pairs.empty() && !bytes) pairs = merges_by_score(v);
  for (const auto& [left, right] : pairs)
    merges += fmt::format("{}[{},{}]", merges.empty() ? "" : ",", quoted(left), quoted(right));
  const std::string unknown = !bytes && v.unk_id >= 0 ? quoted(v.tokens[size_t(v.unk_id)]) : "null";
  return fmt::format(
      R"({{"type":"BPE","dropout":null,"unk_token":{},"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
      R"("fuse_unk":{},"byte_fallback":{},"ignore_merges":{},"vocab":{{{}}},"merges":[{}]}})",
      unknown, !bytes, !bytes, v.ignore_merges.value_or(false), vocab, merges);
}

// What begins every text.
std::string post_processor(const VocabularyData& v, bool adds_bos) {
  if (!adds_bos || v.bos_id < 0) return "null";
  const std::string bos = quoted(v.tokens[size_t(v.bos_id)]);
  return fmt::format(
      R"({{"type":"TemplateProcessing","single":[{{"SpecialToken":{{"id":{0},"type_id":0}}}},{{"Sequence":{{"id":"A","type_id":0}}}}],)"
      R"("pair":[{{"SpecialToken":{{"id":{0},"type_id":0}}}},{{"Sequence":{{"id":"A","type_id":0}}}},{{"Sequence":{{"id":"B","type_id":1}}}}],)"
      R"("special_tokens":{{{0}:{{"id":{0},"ids":[{1}],"tokens":[{0}]}}}}}})",
      bos, v.bos_id);
}

}  // namespace

Result<std::string> tokenizer_json_from(const VocabularyData& v) {
  std::string normalizer = "null", splits, decoder;
  bool adds_bos = v.add_bos.value_or(false);
  VocabularyData data = v;
  if (v.kind == VocabularyKind::kByteLevelBpe) {
    Result<PreTokenizerTraits> traits = pre_tokenizer_traits(v.pre);
    if (!traits) return traits.error();
    if (!data.ignore_merges) data.ignore_merges = traits->ignore_merges;
    if (!v.add_bos) adds_bos = traits->add_bos;
    for (const SplitStep& s : v.splits.empty() ? traits->splits : v.splits)
      splits +=
          fmt::format(R"({{"type":"Split","pattern":{{"Regex":{}}},"behavior":"Isolated","invert":false}},)",
                      quoted(s.regex));
    splits = fmt::format(
        R"({{"type":"Sequence","pretokenizers":[{}{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}}]}})",
        splits);
    decoder = R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";
  } else if (v.kind == VocabularyKind::kSentencePieceBpe) {
    adds_bos = v.add_bos.value_or(true);
    const bool prefix = v.add_space_prefix.value_or(true);
    const std::string replace = R"({"type":"Replace","pattern":{"String":" "},"content":"▁"})";
    normalizer = prefix
                     ? R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},)" + replace + "]}"
                     : replace;
    splits = "null";
    const std::string strip = prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "";
    decoder = R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
              R"({"type":"ByteFallback"},{"type":"Fuse"})" +
              strip + "]}";
  } else {
    return Error{ErrorCode::kUnsupported, "tokenizer.json is not written for unigram vocabularies"};
  }
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{}],"normalizer":{},"pre_tokenizer":{},)"
      R"("post_processor":{},"decoder":{},"model":{}}})",
      added_tokens(v), normalizer, splits, post_processor(v, adds_bos), decoder,
      bpe_model(data, v.kind == VocabularyKind::kByteLevelBpe));
}

std::string tokenizer_config_from(const VocabularyData& v, std::string_view chat_template) {
  std::string out = R"({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false)";
  const std::pair<const char*, int32_t> named[] = {
      {"bos_token", v.bos_id}, {"eos_token", v.eos_id}, {"unk_token", v.unk_id}, {"pad_token", v.pad_id}};
  for (const auto& [name, id] : named)
    if (id >= 0 && size_t(id) < v.tokens.size())
      out += fmt::format(", \"{}\": {}", name, quoted(v.tokens[size_t(id)]));
  if (v.add_bos) out += fmt::format(", \"add_bos_token\": {}", *v.add_bos);
  if (!chat_template.empty()) out += ", \"chat_template\": " + quoted(chat_template);
  return out + "}\n";
}

}  // namespace sluice
