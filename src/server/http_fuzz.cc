// Any bytes as a request, whole and in two cuts: both must come out the same.
#include <cstdint>

#include "base/check.h"
#include "server/http_parser.h"

namespace {

struct Outcome {
  int error = 0;
  bool done = false;
  std::string path, body;
};

Outcome parse(std::string_view first, std::string_view second) {
  sluice::HttpParser parser(4096, 65536);
  std::string bytes;
  for (std::string_view part : {first, second}) {
    bytes += part;
    for (;;) {
      const size_t taken = parser.take(bytes);
      bytes.erase(0, taken);
      if (taken == 0 || parser.error_status() != 0 || parser.done()) break;
    }
  }
  Outcome outcome;
  outcome.error = parser.error_status();
  outcome.done = parser.done();
  if (outcome.done) {
    sluice::HttpRequest request = parser.release();
    outcome.path = request.path;
    outcome.body = request.body;
    CHECK(request.body.size() <= 65536);
  }
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = bytes.empty() ? 0 : data[0] * bytes.size() / 256;
  const Outcome whole = parse(bytes, {});
  const Outcome cut_in_two = parse(bytes.substr(0, cut), bytes.substr(cut));
  CHECK(whole.done == cut_in_two.done && whole.path == cut_in_two.path && whole.body == cut_in_two.body);
  return 0;
}
