#include "quantize/calibration.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "model/formats/json_values.h"
#include "quantize/overlap.h"
#include "text/utf8.h"

namespace sluice::quantize {
namespace {

constexpr size_t kPieceBytes = 1000;
constexpr size_t kLeastTokens = 16, kLeastSamples = 8;

// By its looks: lines that are indented or end in braces and semicolons; lines that begin as items of a list or
// rows of a table.
std::string kind_of(std::string_view text) {
  int lines = 0, code = 0, list = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ++lines;
    const char last = line[line.find_last_not_of(" \t\r")];
    code += line.starts_with("    ") || line.starts_with('\t') || last == ';' || last == '{' || last == '}';
    list += line.starts_with("- ") || line.starts_with("* ") || line.starts_with('|') || line.starts_with("| ");
  }
  return 2 * code > lines ? "code" : 2 * list > lines ? "list" : "prose";
}

// Whether the first line that is not blank is an object with a text.
bool begins_as_jsonl(std::string_view bytes) {
  const size_t begin = bytes.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || bytes[begin] != '{') return false;
  bytes.remove_prefix(begin);
  const Result<JsonValues> values = JsonValues::parse(bytes.substr(0, bytes.find('\n')), "");
  return values && values->string("text");
}

Result<std::vector<Document>> read_jsonl(std::string_view bytes, const std::string& path) {
  std::vector<Document> out;
  for (int number = 1; !bytes.empty(); ++number) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string at = fmt::format("{}: line {}", path, number);
    Result<JsonValues> values = JsonValues::parse(line, at);
    if (!values) return Error{values.error().code, values.error().message, "calibration"};
    const auto text = values->string("text");
    if (!text)
      return Error{ErrorCode::kInvalidArgument, fmt::format("{}: key 'text' is expected", at), "calibration"};
    out.push_back({std::string(values->string("kind").value_or("text")), std::string(*text)});
  }
  return out;
}

std::vector<Document> cut_text(std::string_view bytes) {
  std::vector<Document> out;
  std::string piece;
  const auto finish = [&] {
    if (piece.find_first_not_of(" \t\r\n") != std::string::npos) out.push_back({kind_of(piece), piece});
    piece.clear();
  };
  while (!bytes.empty()) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    bytes.remove_prefix(std::min(bytes.size(), line.size() + 1));
    const bool blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    if (blank && piece.size() >= kPieceBytes) finish();
    if (!piece.empty() || !blank) piece.append(line) += '\n';
  }
  finish();
  return out;
}

// Splitmix64: the same numbers on every machine.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  size_t below(size_t n) {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return size_t((z ^ z >> 31) % n);
  }

 private:
  uint64_t state_;
};

struct Piece {
  size_t document = 0;
  std::vector<int32_t> ids;
};

// Kinds times thirds by length, each list in the order of the text.
std::map<std::string, std::vector<size_t>> strata_of(const std::vector<Document>& documents,
                                                     const std::vector<Piece>& pieces) {
  std::vector<size_t> lengths;
  for (const Piece& p : pieces) lengths.push_back(p.ids.size());
  std::sort(lengths.begin(), lengths.end());
  const size_t low = lengths[lengths.size() / 3], high = lengths[lengths.size() * 2 / 3];
  std::map<std::string, std::vector<size_t>> out;
  for (size_t i = 0; i < pieces.size(); i++) {
    const size_t n = pieces[i].ids.size();
    const char* size = n >= high ? "long" : n >= low ? "middle" : "short";
    out[fmt::format("{} {}", documents[pieces[i].document].kind, size)].push_back(i);
  }
  return out;
}

// Each stratum gets its share, at least one; what rounding leaves over goes to the largest. Of more strata than
// samples the smallest go without.
std::map<std::string, size_t> quotas(const std::map<std::string, std::vector<size_t>>& strata, size_t all,
                                     size_t wanted) {
  std::map<std::string, size_t> out;
  size_t given = 0;
  for (const auto& [name, members] : strata)
    given += out[name] = std::max<size_t>(1, members.size() * wanted / all);
  const auto room = [&](const std::string& name) { return strata.at(name).size() - out.at(name); };
  while (given != wanted) {
    std::string pick;
    for (const auto& [name, members] : strata) {
      const bool possible = given < wanted ? room(name) > 0 : out[name] > 1;
      if (possible && (pick.empty() || members.size() > strata.at(pick).size())) pick = name;
    }
    if (pick.empty())
      for (const auto& [name, members] : strata)
        if (out[name] > 0 && (pick.empty() || members.size() < strata.at(pick).size())) pick = name;
    given < wanted ? (++out[pick], ++given) : (--out[pick], --given);
  }
  return out;
}

}  // namespace

Status check_text(std::string_view bytes, const std::string& path, const char* field) {
  if (is_valid_utf8(bytes) && bytes.find('\0') == std::string_view::npos) return {};
  return Error{ErrorCode::kInvalidArgument, fmt::format("{}: is not UTF-8 text", path), field};
}

Result<std::vector<Document>> read_documents(std::string_view bytes, const std::string& path) {
  if (Status text = check_text(bytes, path, "calibration"); !text) return std::move(text).error();
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (bytes.starts_with(kByteOrderMark)) bytes.remove_prefix(kByteOrderMark.size());
  if (path.ends_with(".jsonl") || begins_as_jsonl(bytes)) return read_jsonl(bytes, path);
  return cut_text(bytes);
}

Result<Calibration> draw_samples(std::string_view bytes, const std::string& path, const CalibrationWish& wish) {
  Result<std::vector<Document>> documents = read_documents(bytes, path);
  if (!documents) return documents.error();
  std::vector<Piece> pieces;
  for (size_t d = 0; d < documents->size(); d++) {
    const std::vector<int32_t> ids = wish.tokenize((*documents)[d].text);
    for (size_t begin = 0; begin < ids.size(); begin += size_t(wish.sample_tokens)) {
      const size_t count = std::min(size_t(wish.sample_tokens), ids.size() - begin);
      if (count < kLeastTokens) continue;
      pieces.push_back({d, {ids.begin() + int64_t(begin), ids.begin() + int64_t(begin + count)}});
    }
  }
  if (pieces.size() < kLeastSamples)
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} pieces of {} tokens or more; calibration needs at least {}: give more text", path,
                    pieces.size(), kLeastTokens, kLeastSamples),
        "calibration"};
  Calibration out{.seed = wish.seed, .sample_tokens = wish.sample_tokens};
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  out.data_hash = fmt::format("xxh3-128:{:016x}{:016x}", hash.high64, hash.low64);
  out.passages.push_back(whole_file(bytes));
  Draw draw(wish.seed);
  auto strata = strata_of(*documents, pieces);
  const auto quota = quotas(strata, pieces.size(), std::min(size_t(wish.samples), pieces.size()));
  std::vector<size_t> chosen;
  for (auto& [name, members] : strata) {
    for (size_t i = 0; i < quota.at(name); i++)
      std::swap(members[i], members[i + draw.below(members.size() - i)]);
    chosen.insert(chosen.end(), members.begin(), members.begin() + int64_t(quota.at(name)));
    if (quota.at(name) == 0) continue;
    out.strata += fmt::format("{}{} {}", out.strata.empty() ? "" : ", ", name, quota.at(name));
  }
  std::sort(chosen.begin(), chosen.end());
  for (size_t i = 0; i < chosen.size(); i++) {
    Piece& piece = pieces[chosen[i]];
    if (i == 0 || pieces[chosen[i - 1]].document != piece.document) {
      const auto own = passages((*documents)[piece.document].text);
      out.passages.insert(out.passages.end(), own.begin(), own.end());
    }
    out.tokens += int64_t(piece.ids.size());
    out.samples.push_back(std::move(piece.ids));
  }
  return out;
}

}  // namespace sluice::quantize
