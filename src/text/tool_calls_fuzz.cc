// Tool-call parsers on any bytes: the joined output does not depend on how the text is cut, and nothing is lost
// where there is no call.
#include <cstdint>
#include <cstdlib>

#include "text/tool_calls.h"

namespace {

struct Said {
  std::string content, calls;
};

Said parsed(sluice::ToolFormat format, std::string_view text, size_t step) {
  sluice::ToolCallParser parser(format);
  Said said;
  std::vector<sluice::ToolCallPiece> pieces;
  for (size_t at = 0; at < text.size(); at += step) {
    pieces.clear();
    parser.push(text.substr(at, step), said.content, pieces);
    for (const auto& p : pieces) said.calls += (p.name.empty() ? "" : "\n" + p.name + "(") + p.arguments;
  }
  pieces.clear();
  parser.finish(said.content, pieces);
  for (const auto& p : pieces) said.calls += (p.name.empty() ? "" : "\n" + p.name + "(") + p.arguments;
  return said;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::ToolFormat;
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t step = 1 + data[0] % 17;
  for (const ToolFormat format :
       {ToolFormat::none, ToolFormat::hermes, ToolFormat::llama3, ToolFormat::mistral}) {
    const Said whole = parsed(format, text, text.size()), cut = parsed(format, text, step);
    if (whole.content != cut.content || whole.calls != cut.calls) std::abort();
    if (whole.calls.empty() && whole.content != text) std::abort();
  }
  return 0;
}
