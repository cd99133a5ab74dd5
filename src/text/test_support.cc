#include "text/test_support.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/check.h"

namespace sluice::testing_support {
namespace {

// The GGUF value types.
enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

class Reader {
 public:
  explicit Reader(std::istream& in) : in_(in) {}
  template <typename T>
  T get() {
    T value;
    in_.read(reinterpret_cast<char*>(&value), sizeof value);
    CHECK(bool(in_));
    return value;
  }
  std::string string() {
    std::string s(get<uint64_t>(), '\0');
    in_.read(s.data(), std::streamsize(s.size()));
    return s;
  }
  int64_t integer(uint32_t type) {
    switch (type) {
      case kU8:
      case kBool:
        return get<uint8_t>();
      case kI8:
        return get<int8_t>();
      case kU16:
        return get<uint16_t>();
      case kI16:
        return get<int16_t>();
      case kU32:
        return get<uint32_t>();
      case kI32:
        return get<int32_t>();
      case kF32:
        return int64_t(get<float>());
      default:
        return get<int64_t>();
    }
  }

 private:
  std::istream& in_;
};

void read_array(Reader& in, const std::string& key, VocabularyData& v) {
  const uint32_t type = in.get<uint32_t>();
  const uint64_t count = in.get<uint64_t>();
  for (uint64_t i = 0; i < count; ++i) {
    if (type == kString) {
      std::string s = in.string();
      if (key == "tokens") v.tokens.push_back(std::move(s));
      if (key == "merges") v.merges.push_back(std::move(s));
    } else if (type == kF32) {
      const float x = in.get<float>();
      if (key == "scores") v.scores.push_back(x);
    } else {
      const int64_t x = in.integer(type);
      if (key == "token_type") v.types.push_back(TokenType(x));
    }
  }
}

void read_scalar(Reader& in, uint32_t type, const std::string& key, VocabularyData& v) {
  const int64_t x = in.integer(type);
  if (key == "bos_token_id") v.bos_id = int32_t(x);
  if (key == "eos_token_id") v.eos_id = int32_t(x);
  if (key == "unknown_token_id") v.unk_id = int32_t(x);
  if (key == "padding_token_id") v.pad_id = int32_t(x);
  if (key == "add_bos_token") v.add_bos = x != 0;
  if (key == "add_eos_token") v.add_eos = x != 0;
  if (key == "add_space_prefix") v.add_space_prefix = x != 0;
}

}  // namespace

std::string source_path(const std::string& relative) { return std::string(SLUICE_SOURCE_DIR) + "/" + relative; }
std::string case_path(const std::string& relative) { return source_path("../shared/cases/" + relative); }

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  CHECK(bool(in), path.c_str());
  return {std::istreambuf_iterator<char>(in), {}};
}

GgufText read_gguf_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(bool(file), path.c_str());
  Reader in(file);
  CHECK(in.get<uint32_t>() == 0x46554747 && in.get<uint32_t>() >= 2);
  in.get<uint64_t>();
  GgufText out;
  const std::string prefix = "tokenizer.ggml.";
  for (uint64_t n = in.get<uint64_t>(); n > 0; --n) {
    const std::string name = in.string();
    const uint32_t type = in.get<uint32_t>();
    const std::string key = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
    if (type == kArray) {
      read_array(in, key, out.vocabulary);
    } else if (type == kString) {
      const std::string s = in.string();
      if (key == "pre") out.vocabulary.pre = s;
      if (key == "model" && s != "gpt2") out.vocabulary.kind = VocabularyKind::kSentencePieceBpe;
      if (key == "model" && s == "t5") out.vocabulary.kind = VocabularyKind::kUnigram;
      if (name == "tokenizer.chat_template") out.chat_template = s;
    } else {
      read_scalar(in, type, key, out.vocabulary);
    }
  }
  return out;
}

namespace {
const Tokenizer& loaded(const char* file, std::unique_ptr<Tokenizer>& slot) {
  if (!slot) {
    auto made = Tokenizer::create(read_gguf_text(source_path(file)).vocabulary);
    CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
    slot = std::move(*made);
  }
  return *slot;
}
}  // namespace

const Tokenizer& smollm_tokenizer() {
  static std::unique_ptr<Tokenizer> slot;
  return loaded("models/SmolLM2-135M-Instruct.Q4_1.gguf", slot);
}
const Tokenizer& gemma_tokenizer() {
  static std::unique_ptr<Tokenizer> slot;
  return loaded("models/gemma-3-270m-q4_k_m.gguf", slot);
}

void for_each_json_line(const std::string& path, const std::function<void(simdjson::dom::element)>& f) {
  std::istringstream lines(read_file(path));
  simdjson::dom::parser parser;
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    if (!line.empty()) f(parser.parse(line).value());
  }
  CHECK(count > 0, path.c_str());
}

std::vector<int32_t> id_list(simdjson::dom::element array) {
  std::vector<int32_t> out;
  for (simdjson::dom::element id : array) out.push_back(int32_t(int64_t(id)));
  return out;
}

}  // namespace sluice::testing_support
