#include "text/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/json_error.h"
#include "text/pre_tokenizer.h"

namespace sluice {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxFileBytes = size_t(512) << 20;
constexpr int64_t kMaxTokenId = (4 << 20) - 1;
constexpr std::string_view kSpaceMark = "▁";

Error corrupt(std::string text) { return Error{ErrorCode::kCorrupt, "tokenizer.json: " + std::move(text)}; }
Error unsupported(std::string text) {
  return Error{ErrorCode::kUnsupported, "tokenizer.json: " + std::move(text)};
}

// Members that are missing or of another type count as absent: files of many versions exist.
std::string_view text_of(element e, const char* key) {
  std::string_view out;
  return e[key].get(out) == simdjson::SUCCESS ? out : std::string_view();
}
bool flag_of(element e, const char* key, bool otherwise = false) {
  bool out;
  return e[key].get(out) == simdjson::SUCCESS ? out : otherwise;
}
bool integer_of(element e, const char* key, int64_t& out) { return e[key].get(out) == simdjson::SUCCESS; }
// Null members are as good as absent ones.
bool member(element e, const char* key, element& out) {
  return e[key].get(out) == simdjson::SUCCESS && !out.is_null();
}

Result<element> parse(simdjson::dom::parser& parser, std::string_view json, const char* what) {
  if (json.size() > kMaxFileBytes)
    return Error{ErrorCode::kTooLarge, fmt::format("{} of {} bytes", what, json.size())};
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS) {
    return Error{ErrorCode::kCorrupt, fmt::format("{}: not valid JSON: {}", what, json_error_words(error))};
  }
  if (!root.is_object()) return Error{ErrorCode::kCorrupt, fmt::format("{}: not an object", what)};
  return root;
}

// For messages of one line.
std::string printable(std::string_view text) {
  std::string out(text.substr(0, 40));
  while (out.size() < text.size() && !out.empty() && uint8_t(out.back()) >= 0x80) out.pop_back();
  std::replace_if(
      out.begin(), out.end(), [](char c) { return uint8_t(c) < 0x20 || c == 0x7f; }, '?');
  return out;
}

std::string escaped_regex(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    const bool plain = uint8_t(c) >= 0x80 || std::isalnum(uint8_t(c)) || c == ' ' || uint8_t(c) < 0x20;
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

bool is_byte_token(std::string_view t) {
  return t.size() == 6 && t.starts_with("<0x") && t[5] == '>' && std::isxdigit(uint8_t(t[3])) &&
         std::isxdigit(uint8_t(t[4]));
}

// Collects what the parts of the file say about one VocabularyData.
class Reader {
 public:
  Result<VocabularyData> read(element root);

 private:
  Status read_model(element model);
  Status read_bpe(element model);
  Status read_unigram(element model);
  Status read_merges(element model);
  Status check_merges(object vocab) const;
  bool taken(int64_t id) const;
  Status read_added(element root);
  Status read_normalizer(element e, int depth);
  Status read_replace(element e);
  Status read_pre_tokenizer(element e, int depth);
  Status read_split(element e);
  Status read_metaspace(element e);
  Status read_post_processor(element e, int depth);
  void read_template(element e);
  Status place(int64_t id, std::string_view text, TokenType type);

  VocabularyData data_;
  bool byte_level_ = false, escapes_ = false, prefix_ = false;
};

Status Reader::place(int64_t id, std::string_view text, TokenType type) {
  if (id < 0 || id > kMaxTokenId) return corrupt(fmt::format("token id {}", id));
  if (size_t(id) >= data_.tokens.size()) {
    // One bad id must not cost more memory than a whole vocabulary of that size would.
    data_.tokens.resize(size_t(id) + 1);
    data_.types.resize(size_t(id) + 1, TokenType::kUnused);
  }
  data_.tokens[size_t(id)] = text;
  data_.types[size_t(id)] = type;
  return {};
}

bool Reader::taken(int64_t id) const {
  return id >= 0 && size_t(id) < data_.types.size() && data_.types[size_t(id)] != TokenType::kUnused;
}

Status Reader::read_bpe(element model) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(model, key).empty()) return unsupported(fmt::format("BPE with {}", key));
  }
  object vocab;
  if (model["vocab"].get(vocab) != simdjson::SUCCESS) return corrupt("model.vocab is not an object");
  if (vocab.size() == 0) return corrupt("model.vocab is empty");
  data_.byte_fallback = flag_of(model, "byte_fallback");
  const std::string_view unknown = text_of(model, "unk_token");
  for (const auto [text, id_element] : vocab) {
    int64_t id;
    if (id_element.get(id) != simdjson::SUCCESS) return corrupt("a token id is not a number");
    if (taken(id)) return corrupt(fmt::format("model.vocab: two tokens have the id {}", id));
    const bool byte = data_.byte_fallback && is_byte_token(text);
    if (Status s = place(id, text, byte ? TokenType::kByte : TokenType::kNormal); !s) return s;
    if (!unknown.empty() && text == unknown) data_.unk_id = int32_t(id);
  }
  data_.fuse_unknown = flag_of(model, "fuse_unk");
  data_.ignore_merges = flag_of(model, "ignore_merges");
  if (Status s = read_merges(model); !s) return s;
  return check_merges(vocab);
}

// A merge that could never happen means that vocabulary and merges are of two models.
Status Reader::check_merges(object vocab) const {
  std::unordered_set<std::string_view> known;
  known.reserve(vocab.size());
  for (const auto field : vocab) known.insert(field.key);
  std::string joined;
  for (const std::string& merge : data_.merges) {
    const size_t gap = merge.find(' ', 1);
    if (gap == merge.npos) return corrupt("model.merges: a merge without a space");
    const std::string_view left = std::string_view(merge).substr(0, gap),
                           right = std::string_view(merge).substr(gap + 1);
    joined.assign(left).append(right);
    for (const std::string_view piece : {left, right, std::string_view(joined)})
      if (!known.contains(piece))
        return corrupt(fmt::format("model.merges: '{}' is not in model.vocab", printable(piece)));
  }
  return {};
}

Status Reader::read_merges(element model) {
  array merges;
  if (model["merges"].get(merges) != simdjson::SUCCESS) return corrupt("model.merges is not an array");
  data_.merges.reserve(merges.size());
  for (const element merge : merges) {
    std::string_view text, left, right;
    array pair;
    if (merge.get(text) == simdjson::SUCCESS) {
      data_.merges.emplace_back(text);
      continue;
    }
    if (merge.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
        pair.at(1).get(right) != simdjson::SUCCESS) {
      return corrupt("a merge is neither text nor a pair");
    }
    // VocabularyData splits at the first space after the first byte; no known file has tokens with spaces.
    if (left.find(' ', 1) != left.npos || left.empty()) return unsupported("a merge of tokens with spaces");
    data_.merges.push_back(fmt::format("{} {}", left, right));
  }
  return {};
}

Status Reader::read_unigram(element model) {
  data_.kind = VocabularyKind::kUnigram;
  array vocab;
  if (model["vocab"].get(vocab) != simdjson::SUCCESS) return corrupt("model.vocab is not an array");
  if (vocab.size() == 0) return corrupt("model.vocab is empty");
  data_.byte_fallback = flag_of(model, "byte_fallback");
  data_.fuse_unknown = true;
  int64_t unknown = -1;
  integer_of(model, "unk_id", unknown);
  int64_t id = 0;
  for (const element entry : vocab) {
    std::string_view text;
    double score;
    if (entry.at(0).get(text) != simdjson::SUCCESS || entry.at(1).get(score) != simdjson::SUCCESS) {
      return corrupt("a token is not a pair of text and score");
    }
    const TokenType type = id == unknown                                ? TokenType::kUnknown
                           : data_.byte_fallback && is_byte_token(text) ? TokenType::kByte
                                                                        : TokenType::kNormal;
    if (Status s = place(id, text, type); !s) return s;
    data_.scores.push_back(float(score));
    ++id;
  }
  data_.unk_id = unknown >= 0 && unknown < id ? int32_t(unknown) : -1;
  return {};
}

Status Reader::read_model(element model) {
  const std::string_view type = text_of(model, "type");
  element ignored;
  if (type == "BPE" || (type.empty() && member(model, "merges", ignored))) return read_bpe(model);
  if (type == "Unigram") return read_unigram(model);
  if (type.empty()) return corrupt("model has neither a type nor merges");
  return unsupported(fmt::format("model type '{}' is not supported (BPE and Unigram are)", type.substr(0, 40)));
}

Status Reader::read_added(element root) {
  array added;
  if (root["added_tokens"].get(added) != simdjson::SUCCESS) return {};
  std::unordered_set<int64_t> ids;
  for (const element token : added) {
    int64_t id;
    std::string_view text = text_of(token, "content");
    if (!integer_of(token, "id", id) || text.empty()) return corrupt("an added token without id or content");
    // One that renames a token of model.vocab is usual in fine-tuned models.
    if (!ids.insert(id).second) return corrupt(fmt::format("added_tokens: two tokens have the id {}", id));
    // Byte tokens are sometimes listed here too; they stay what bytes fall back to.
    const TokenType type = data_.byte_fallback && is_byte_token(text) ? TokenType::kByte
                           : flag_of(token, "special")                ? TokenType::kControl
                                                                      : TokenType::kUserDefined;
    if (Status s = place(id, text, type); !s) return s;
    const TokenTrim trim{int32_t(id), flag_of(token, "lstrip"), flag_of(token, "rstrip"),
                         flag_of(token, "single_word")};
    if (trim.left || trim.right || trim.single_word) data_.trims.push_back(trim);
  }
  if (!data_.scores.empty()) data_.scores.resize(data_.tokens.size(), 0.0f);
  return {};
}

Status Reader::read_replace(element e) {
  element pattern;
  if (!member(e, "pattern", pattern)) return corrupt("Replace without pattern");
  const std::string_view literal = text_of(pattern, "String"), regex = text_of(pattern, "Regex"),
                         content = text_of(e, "content");
  if (literal == " " && content == kSpaceMark) {
    escapes_ = true;
  } else if (!literal.empty()) {
    data_.normalizers.push_back({NormalizeStep::Kind::kReplace, std::string(literal), std::string(content)});
  } else if (!regex.empty()) {
    data_.normalizers.push_back({NormalizeStep::Kind::kReplaceRegex, std::string(regex), std::string(content)});
  }
  return {};
}

Result<std::string> base64_decoded(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) return corrupt("precompiled_charsmap is not base64");
    bits = bits << 6 | uint32_t(value);
    if ((count += 6) >= 8) out += char(bits >> (count -= 8) & 0xFF);
  }
  return out;
}

Status Reader::read_normalizer(element e, int depth) {
  using Kind = NormalizeStep::Kind;
  const std::string_view type = text_of(e, "type");
  static const std::unordered_map<std::string_view, Kind> plain = {{"NFC", Kind::kNfc},
                                                                   {"NFD", Kind::kNfd},
                                                                   {"NFKC", Kind::kNfkc},
                                                                   {"NFKD", Kind::kNfkd},
                                                                   {"Lowercase", Kind::kLowercase}};
  if (const auto found = plain.find(type); found != plain.end()) {
    data_.normalizers.push_back({found->second});
  } else if (type == "Sequence") {
    array parts;
    if (depth > 4 || e["normalizers"].get(parts) != simdjson::SUCCESS) return corrupt("normalizer sequence");
    for (const element part : parts) {
      if (Status s = read_normalizer(part, depth + 1); !s) return s;
    }
  } else if (type == "Replace") {
    return read_replace(e);
  } else if (type == "Prepend") {
    if (text_of(e, "prepend") != kSpaceMark) return unsupported("Prepend of something else than U+2581");
    prefix_ = true;
  } else if (type == "Strip") {
    const std::string ends =
        std::string(flag_of(e, "strip_left", true) ? "l" : "") + (flag_of(e, "strip_right", true) ? "r" : "");
    data_.normalizers.push_back({Kind::kStrip, "", ends});
  } else if (type == "Precompiled") {
    Result<std::string> map = base64_decoded(text_of(e, "precompiled_charsmap"));
    if (!map) return map.error();
    if (!map->empty()) data_.normalizers.push_back({Kind::kPrecompiled, std::move(*map)});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
  } else {
    return unsupported(fmt::format("normalizer '{}'", type.substr(0, 40)));
  }
  return {};
}

Status Reader::read_split(element e) {
  element pattern;
  if (!member(e, "pattern", pattern)) return corrupt("Split without pattern");
  const std::string_view literal = text_of(pattern, "String"), regex = text_of(pattern, "Regex");
  using Behavior = SplitStep::Behavior;
  static const std::unordered_map<std::string_view, Behavior> behaviors = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"Contiguous", Behavior::kContiguous},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext}};
  const auto behavior = behaviors.find(text_of(e, "behavior"));
  if (behavior == behaviors.end()) return corrupt("Split without a known behavior");
  data_.splits.push_back(
      {literal.empty() ? std::string(regex) : escaped_regex(literal), behavior->second, flag_of(e, "invert")});
  return {};
}

Status Reader::read_metaspace(element e) {
  if (const std::string_view mark = text_of(e, "replacement"); mark != kSpaceMark) {
    return unsupported("Metaspace with another character than U+2581");
  }
  if (!data_.splits.empty()) return unsupported("Metaspace after another split");
  const std::string_view scheme = text_of(e, "prepend_scheme");
  escapes_ = true;
  if (scheme == "never" || (scheme.empty() && !flag_of(e, "add_prefix_space", true))) return {};
  prefix_ = true;
  data_.space_prefix_unless_present = true;
  data_.space_prefix = scheme == "first" ? SpacePrefix::kFirst : SpacePrefix::kAlways;
  return {};
}

Status Reader::read_pre_tokenizer(element e, int depth) {
  using Behavior = SplitStep::Behavior;
  const std::string_view type = text_of(e, "type");
  if (type == "Sequence") {
    array parts;
    if (depth > 4 || e["pretokenizers"].get(parts) != simdjson::SUCCESS)
      return corrupt("pre-tokenizer sequence");
    for (const element part : parts) {
      if (Status s = read_pre_tokenizer(part, depth + 1); !s) return s;
    }
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    const bool prefix = flag_of(e, "add_prefix_space", true);
    if (prefix && !data_.splits.empty()) return unsupported("a prefix space for each piece of another split");
    if (prefix) prefix_ = data_.space_prefix_unless_present = true;
    if (flag_of(e, "use_regex", true)) data_.splits.push_back({std::string(gpt2_pattern())});
  } else if (type == "Split") {
    return read_split(e);
  } else if (type == "Digits") {
    data_.splits.push_back({flag_of(e, "individual_digits") ? "\\p{N}" : "\\p{N}+"});
  } else if (type == "Punctuation") {
    data_.splits.push_back({"[!-/:-@\\[-`{-~]|\\p{P}"});
  } else if (type == "Whitespace") {
    data_.splits.push_back({"\\w+|[^\\w\\s]+", Behavior::kRemoved, true});
  } else if (type == "WhitespaceSplit") {
    data_.splits.push_back({"\\s", Behavior::kRemoved});
  } else if (type == "Metaspace") {
    if (Status s = read_metaspace(e); !s) return s;
    if (flag_of(e, "split", true)) data_.splits.push_back({std::string(kSpaceMark), Behavior::kMergedWithNext});
  } else {
    return unsupported(fmt::format("pre-tokenizer '{}'", type.substr(0, 40)));
  }
  return {};
}

// Special tokens before and after the one sequence are BOS and EOS, whatever they are called.
void Reader::read_template(element e) {
  array parts;
  if (e["single"].get(parts) != simdjson::SUCCESS) return;
  bool before = true;
  for (const element part : parts) {
    element special;
    if (!member(part, "SpecialToken", special)) {
      before = false;
      continue;
    }
    element entry;
    const std::string name(text_of(special, "id"));
    element ids;
    int64_t id;
    if (e["special_tokens"][name].get(entry) != simdjson::SUCCESS || !member(entry, "ids", ids) ||
        ids.at(0).get(id) != simdjson::SUCCESS || id < 0 || id > kMaxTokenId) {
      continue;
    }
    (before ? data_.bos_id : data_.eos_id) = int32_t(id);
    (before ? data_.add_bos : data_.add_eos) = true;
  }
}

Status Reader::read_post_processor(element e, int depth) {
  const std::string_view type = text_of(e, "type");
  if (type == "Sequence") {
    array parts;
    if (depth > 4 || e["processors"].get(parts) != simdjson::SUCCESS) return corrupt("post-processor sequence");
    for (const element part : parts) {
      if (Status s = read_post_processor(part, depth + 1); !s) return s;
    }
  } else if (type == "TemplateProcessing") {
    read_template(e);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    int64_t first, last;
    if (e["cls"].at(1).get(first) != simdjson::SUCCESS || e["sep"].at(1).get(last) != simdjson::SUCCESS ||
        first < 0 || last < 0 || first > kMaxTokenId || last > kMaxTokenId) {
      return corrupt("post-processor without cls and sep");
    }
    data_.bos_id = int32_t(first);
    data_.eos_id = int32_t(last);
    data_.add_bos = data_.add_eos = true;
  } else if (type != "ByteLevel") {
    return unsupported(fmt::format("post-processor '{}'", type.substr(0, 40)));
  }
  return {};
}

Result<VocabularyData> Reader::read(element root) {
  data_.kind = VocabularyKind::kSentencePieceBpe;
  data_.add_bos = data_.add_eos = false;
  data_.escape_spaces = false;
  element part;
  if (!member(root, "model", part)) return corrupt("no model");
  if (Status s = read_model(part); !s) return s.error();
  if (Status s = read_added(root); !s) return s.error();
  if (member(root, "normalizer", part)) {
    if (Status s = read_normalizer(part, 0); !s) return s.error();
  }
  if (member(root, "pre_tokenizer", part)) {
    if (Status s = read_pre_tokenizer(part, 0); !s) return s.error();
  }
  if (member(root, "post_processor", part)) {
    if (Status s = read_post_processor(part, 0); !s) return s.error();
  }
  if (byte_level_ && data_.kind == VocabularyKind::kUnigram) return unsupported("Unigram over bytes");
  if (byte_level_) data_.kind = VocabularyKind::kByteLevelBpe;
  // Without any split Tokenizer would take the default of GGUF files.
  if (byte_level_ && data_.splits.empty()) data_.splits.push_back({"(?s).+"});
  data_.escape_spaces = escapes_;
  data_.add_space_prefix = prefix_;
  const auto count = int32_t(data_.tokens.size());
  for (int32_t* id : {&data_.bos_id, &data_.eos_id, &data_.unk_id}) {
    if (*id >= count) return corrupt(fmt::format("special token id {} of {} tokens", *id, count));
  }
  return std::move(data_);
}

// A token of tokenizer_config.json: text, or an object with it.
std::string_view token_text(element root, const char* key) {
  element token;
  if (!member(root, key, token)) return {};
  std::string_view text;
  return token.get(text) == simdjson::SUCCESS ? text : text_of(token, "content");
}

}  // namespace

Result<VocabularyData> vocabulary_from_tokenizer_json(std::string_view json) {
  simdjson::dom::parser parser;
  Result<element> root = parse(parser, json, "tokenizer.json");
  if (!root) return root.error();
  return Reader().read(*root);
}

Status apply_tokenizer_config(std::string_view json, VocabularyData& data) {
  simdjson::dom::parser parser;
  Result<element> root = parse(parser, json, "tokenizer_config.json");
  if (!root) return root.error();
  auto find = [&data](std::string_view text, int32_t& id) {
    if (text.empty()) return;
    const auto found = std::find(data.tokens.begin(), data.tokens.end(), text);
    if (found != data.tokens.end()) id = int32_t(found - data.tokens.begin());
  };
  find(token_text(*root, "bos_token"), data.bos_id);
  find(token_text(*root, "eos_token"), data.eos_id);
  find(token_text(*root, "unk_token"), data.unk_id);
  find(token_text(*root, "pad_token"), data.pad_id);
  bool flag;
  if ((*root)["add_bos_token"].get(flag) == simdjson::SUCCESS) data.add_bos = flag;
  if ((*root)["add_eos_token"].get(flag) == simdjson::SUCCESS) data.add_eos = flag;
  return {};
}

Status apply_generation_config(std::string_view json, VocabularyData& data) {
  simdjson::dom::parser parser;
  Result<element> root = parse(parser, json, "generation_config.json");
  if (!root) return root.error();
  auto add = [&data](element e) -> Status {
    int64_t id;
    if (e.get(id) != simdjson::SUCCESS || id < 0 || id > kMaxTokenId)
      return Error{ErrorCode::kCorrupt, "key 'eos_token_id': must be a token id, a list of them, or null"};
    data.end_of_generation_ids.push_back(int32_t(id));
    return {};
  };
  element ids;
  if (!member(*root, "eos_token_id", ids)) return {};
  array several;
  if (ids.get(several) != simdjson::SUCCESS) return add(ids);
  for (const element id : several)
    if (Status s = add(id); !s) return s;
  return {};
}

Result<std::string> chat_template_from_config(std::string_view json) {
  simdjson::dom::parser parser;
  Result<element> root = parse(parser, json, "tokenizer_config.json");
  if (!root) return root.error();
  element given;
  if (!member(*root, "chat_template", given)) return std::string();
  std::string_view text;
  if (given.get(text) == simdjson::SUCCESS) return std::string(text);
  array named;
  std::string first;
  if (given.get(named) != simdjson::SUCCESS) return std::string();
  for (const element entry : named) {
    if (text_of(entry, "name") == "default") return std::string(text_of(entry, "template"));
    if (first.empty()) first = text_of(entry, "template");
  }
  return first;
}

}  // namespace sluice
