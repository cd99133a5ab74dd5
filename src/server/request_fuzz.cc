// Any bytes as the body of every API that takes JSON. The first byte chooses the parser.
#include <cstdint>

#include "base/log.h"
#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/json_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  if (size == 0) return 0;
  set_log_level(LogLevel::off);  // made-up members are logged by name
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestBounds bounds{1000, 8, 4, 8};
  std::string message;
  if (data[0] & 1) {
    auto request = parse_completion_request(body, bounds);
    if (request.ok())
      CHECK(!request->prompts.empty() && request->prompts.size() <= 4 && request->options.n <= 8);
    else
      message = request.error().message + request.error().field;
  } else {
    auto request = parse_chat_request(body, bounds);
    if (request.ok())
      CHECK(JsonDocument::parse(request->messages).ok());
    else
      message = request.error().message + request.error().field;
  }
  std::string json;
  append_json_string(json, message);
  CHECK(JsonDocument::parse(json).ok());
  return 0;
}
