// ChatTemplate: messages to prompt text, by the model's own Jinja template. The engine is llama.cpp's
// common/jinja, bounded by template_guard.h, since a template is a program that comes with a file.
//
// Immutable once created: render() may be called by any number of threads. It may use up to 1 MiB of stack.
// JSON comes in as text, so that no JSON type is in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

struct ChatTemplateLimits {
  size_t source_bytes = 256 << 10;  // the largest known template has 17 KiB
  size_t input_bytes = 32 << 20;    // messages, tools and extra variables together
  size_t output_bytes = 32 << 20;
  int64_t memory_bytes = 256 << 20;  // an estimate of what one rendering holds at a time
  int64_t wall_ms = 10'000;
};

struct ChatTemplateInput {
  std::string_view messages_json;    // array of objects with role and content, as the OpenAI API has them
  std::string_view tools_json = {};  // array; empty: no tools
  std::string_view extra_json = {};  // object of further variables ("enable_thinking"); wins over nothing above
  bool add_generation_prompt = true;
  // A last message of the assistant is left open, to be continued: the prompt ends with its content.
  bool continue_last_assistant = true;
  bool may_keep = true;  // the prompt may be kept for when the same input comes again (render_cache.h)
};

class ChatTemplate {
 public:
  // bos_text and eos_text are what {{ bos_token }} and {{ eos_token }} give. Where the tokenizer adds BOS
  // itself (Tokenizer::adds_bos), pass "" as bos_text, or the prompt has it twice. kInvalidArgument: the
  // template does not parse, with line and column; kTooLarge: over a limit.
  static Result<ChatTemplate> create(std::string source, std::string bos_text, std::string eos_text,
                                     ChatTemplateLimits limits = {});
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // kInvalidArgument: bad JSON, or the template refuses the messages (its own words and position are in the
  // message); kTooLarge, kDeadlineExceeded: over a limit.
  Result<std::string> render(const ChatTemplateInput& input) const;

  // Whether content parts ([{"type": "text", …}]) reach the template as they are; else they are joined by
  // newlines.
  bool takes_content_parts() const;
  // Whether the arguments of tool calls reach the template as an object; else as the JSON text of the API.
  bool takes_object_arguments() const;
  // Whether the template shows tools, and calls of tools in the history; one that does not drops them silently.
  bool renders_tools() const;
  const std::string& source() const;

 private:
  class Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
