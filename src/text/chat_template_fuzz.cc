// A template, and after a zero byte the messages: an Error or a prompt within the limits.
#include <cstdint>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string_view messages =
      zero == all.npos ? R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"a"}])"
                       : all.substr(zero + 1);
  const sluice::ChatTemplateLimits limits{.output_bytes = 1 << 20, .memory_bytes = 2 << 20, .wall_ms = 2000};
  auto chat = sluice::ChatTemplate::create(std::string(all.substr(0, zero)), "<s>", "</s>", limits);
  if (!chat) return 0;
  const char* tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const auto out = chat->render(
      {.messages_json = messages, .tools_json = tools, .extra_json = R"({"enable_thinking":true})"});
  if (out) CHECK(out->size() <= (1 << 20) + messages.size());
  return 0;
}
