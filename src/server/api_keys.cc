#include "server/api_keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

namespace {

constexpr std::string_view kHashed = "sha256:";

std::optional<Sha256> read_digest(std::string_view hex) {
  Sha256 out{};
  if (hex.size() != 2 * out.size()) return std::nullopt;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    out[i / 2] = uint8_t(out[i / 2] << 4 | digit);
  }
  return out;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

}  // namespace

Result<ApiKeys> ApiKeys::create(const std::vector<std::string>& entries) {
  ApiKeys out;
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string_view entry = entries[i];
    const auto wrong = [&](const char* why) {
      return Error{ErrorCode::kInvalidArgument, fmt::format("server.api_keys: entry {} {}", i + 1, why), ""};
    };
    Key key{fmt::format("key-{}", i + 1), {}};
    // A key as it is may hold '=' itself, so a name counts before a digest only.
    const size_t hashed = entry.find(kHashed);
    if (hashed == std::string_view::npos || (hashed > 0 && entry[hashed - 1] != '=')) {
      if (entry.empty()) return wrong("is empty");
      key.digest = sha256(entry);
      out.any_plain_ = true;
    } else {
      if (hashed > 0) {
        if (!is_name(entry.substr(0, hashed - 1)))
          return wrong("must have a name of letters, digits, '-', '_' and '.', at most 64, before '=sha256:'");
        key.name = std::string(entry.substr(0, hashed - 1));
      }
      const auto digest = read_digest(entry.substr(hashed + kHashed.size()));
      if (!digest) return wrong("must have 64 hexadecimal digits after 'sha256:'");
      // What `printf %s "$UNSET" | sha256sum` makes: it would let in who has no key.
      if (*digest == sha256("")) return wrong("is the digest of an empty key");
      key.digest = *digest;
    }
    for (const Key& other : out.keys_) {
      if (other.name == key.name) return wrong("has the name of another entry");
    }
    out.keys_.push_back(std::move(key));
  }
  return out;
}

int ApiKeys::find(const HttpRequest& request) const {
  std::string_view given = request.header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  if (given.size() > kBearer.size() && equal_ignoring_case(given.substr(0, kBearer.size()), kBearer))
    given.remove_prefix(kBearer.size());
  else
    given = request.header("x-api-key");
  const Sha256 digest = sha256(given);
  int found = 0;
  for (size_t k = 0; k < keys_.size(); ++k) {
    uint8_t difference = 0;
    for (size_t i = 0; i < digest.size(); ++i) difference |= uint8_t(digest[i] ^ keys_[k].digest[i]);
    if (difference == 0) found = int(k) + 1;
  }
  return found;
}

}  // namespace sluice
