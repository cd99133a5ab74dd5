// Stop strings and text from the input, cut into chunks by it: what comes out must be what a search over the
// whole text gives; and bytes as tokens through the detokenizer must equal the whole decode.
#include <cstdint>

#include "text/detokenizer.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

namespace {

const sluice::Tokenizer& byte_tokenizer() {
  static const auto tokenizer = [] {
    sluice::VocabularyData data;
    data.kind = sluice::VocabularyKind::kSentencePieceBpe;
    const char* hex = "0123456789ABCDEF";
    for (int b = 0; b < 256; ++b) {
      data.tokens.push_back(std::string("<0x") + hex[b / 16] + hex[b % 16] + ">");
      data.types.push_back(sluice::TokenType::kByte);
    }
    data.scores.assign(256, 0.0f);
    return std::move(*sluice::Tokenizer::create(std::move(data)));
  }();
  return *tokenizer;
}

void check_stops(std::string_view text, const std::vector<std::string>& stops, size_t chunk) {
  size_t cut = text.size();
  for (size_t end = 1; end <= text.size() && cut == text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (!stop.empty() && text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) {
      cut = end - longest;
      break;
    }
  }
  sluice::StopMatcher matcher(stops);
  std::string out;
  for (size_t at = 0; at < text.size(); at += chunk) matcher.push(text.substr(at, chunk), out);
  matcher.finish(out);
  CHECK(matcher.stopped() ? out == text.substr(0, cut) : out == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t a = data[0] % 8, b = data[1] % 8, chunk = 1 + data[2] % 16;
  std::string_view rest = all.substr(3);
  const std::string first(rest.substr(0, a));
  rest.remove_prefix(std::min(a, rest.size()));
  const std::string second(rest.substr(0, b));
  rest.remove_prefix(std::min(b, rest.size()));
  check_stops(rest.substr(0, 2000), {first, second}, chunk);

  sluice::Detokenizer detokenizer(byte_tokenizer(), sluice::Detokenizer::Start::kText);
  std::vector<int32_t> ids(data, data + std::min<size_t>(size, 2000));
  std::string out;
  for (const int32_t id : ids) {
    const size_t before = out.size();
    detokenizer.push(id, out);
    CHECK(sluice::is_valid_utf8(std::string_view(out).substr(before)));
  }
  detokenizer.finish(out);
  CHECK(out == sluice::replace_invalid_utf8(byte_tokenizer().decode(ids)));
  return 0;
}
