// `sluice chat`: a conversation, line by line. Ctrl-C ends the answer being written; at the prompt it ends the
// program.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/signals.h"
#include "server/json_writer.h"
#include "text/chat_template.h"

namespace sluice::cli {
namespace {

constexpr const char* kHelp =
    "/reset  forget the conversation\n/help   this text\n/quit   the end, as Ctrl-D and Ctrl-C\n";

struct Message {
  const char* role;
  std::string content;
};

class Conversation {
 public:
  Conversation(ServedModel& model, const GenerateOptions& options) : model_(model), options_(options) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
  }

  // Answers on stdout. What failed leaves the conversation as it was.
  Status say(const std::string& line) {
    messages_.push_back({"user", line});
    Result<Generation> answer = answer_last();
    Status whole = answer ? check_whole(*answer) : Status(std::move(answer).error());
    if (!whole) {
      messages_.pop_back();
      return whole;
    }
    messages_.push_back({"assistant", answer->text});
    if (isatty(STDERR_FILENO)) fmt::print(stderr, "\033[2m{}\033[0m\n", describe_speed(*answer));
    return {};
  }

 private:
  Result<Generation> answer_last() {
    const std::string messages = messages_json();
    Result<std::string> prompt = model_.chat_template()->render({.messages_json = messages});
    if (!prompt) return std::move(prompt).error();
    std::vector<int32_t> ids = model_.tokenizer().encode(*prompt, true, true);
    const auto print = [](std::string_view text) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      std::fflush(stdout);
    };
    Result<Generation> answer =
        generate(model_, std::move(ids), options_, print, [] { return Signals::count() > 0; });
    Signals::reset();
    fmt::print("\n");
    return answer;
  }

  std::string messages_json() const {
    std::string json;
    JsonWriter out(json);
    out.begin_array();
    for (const Message& m : messages_) {
      out.begin_object();
      out.key("role").string(m.role);
      out.key("content").string(m.content);
      out.end_object();
    }
    out.end_array();
    return json;
  }

  ServedModel& model_;
  const GenerateOptions& options_;
  std::vector<Message> messages_;
};

// False: no more input.
bool read_line(std::string& line, bool interactive) {
  if (interactive) fmt::print("> ");
  std::fflush(stdout);
  const bool got = bool(std::getline(std::cin, line));
  if (!got && interactive) fmt::print("\n");
  return got;
}

}  // namespace

int chat(const Config& config, const GenerateOptions& options) {
  Result<std::unique_ptr<ServedModel>> model = load_with_progress(config);
  if (!model) return failure(model.error());
  if (!(*model)->chat_template())
    return failure(
        (*model)->path() +
        ": this model has no chat template; give one with --chat-template FILE, or use `sluice run`");

  Signals signals(Signals::Watch::only_interrupt);
  const bool interactive = isatty(STDIN_FILENO);
  if (interactive) fmt::print("{} is loaded. /help says what there is besides talking.\n", (*model)->name());
  Conversation conversation(**model, options);
  std::string line;
  int status = 0;
  while (!std::ferror(stdout) && read_line(line, interactive)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/quit" || line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
    } else if (line.starts_with('/') && interactive) {
      fmt::print("{}", kHelp);
    } else if (Status said = conversation.say(line); !said) {
      status = failure(said.error().message + (interactive ? "; /reset forgets the conversation" : ""));
    }
  }
  return interactive ? 0 : status;
}

}  // namespace sluice::cli
