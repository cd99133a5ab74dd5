// For tests of this room: an engine that says what a test tells it to, and a model around it with a vocabulary
// of a few hundred tokens (characters, bytes, and the words "ABC", "DEF", "GH", "hello", " world").
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/served_model.h"

namespace sluice {

class ScriptedEngine final : public Engine {
 public:
  // What a request gets, all at once, as it is submitted. Unset: nothing comes until `emit`.
  std::function<std::vector<TokenEvent>(const Request&)> script;
  size_t outbox = 4096;
  std::vector<float> pooled;  // what a request that pools gets
  // Set to refuse what is submitted after so many requests.
  size_t accept_at_most = SIZE_MAX;

  ScriptedEngine();
  const EngineInfo& info() const override { return info_; }
  EngineStatus status() const override { return {.stuck = stuck.load()}; }
  std::atomic<bool> stuck{false};
  Result<std::shared_ptr<RequestStream>> submit(Request request, std::function<void()> notify) override;
  void drain(TimeNs) override {}

  // As the engine thread: false when the outbox is full.
  bool emit(size_t request, const TokenEvent& event);
  void set_prompt_logprobs(size_t request, std::vector<TokenLogprobs> logprobs);
  // Blocks until so many were submitted in all; the test's time limit is the only one.
  void wait_submitted(size_t count);
  bool cancelled(size_t request);
  void wait_cancelled(size_t request);
  Request request(size_t i);
  size_t submitted();
  size_t waiting_events(size_t request);

  EngineInfo info_;

 private:
  struct Live {
    Request request;
    std::shared_ptr<RequestStream> stream;
  };
  void push(RequestStream& stream, const TokenEvent& event);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Live> live_;
};

class ToyModel final : public ServedModel {
 public:
  ToyModel();
  Engine& engine() override { return scripted; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate* chat_template() const override { return chat_template_ ? &*chat_template_ : nullptr; }
  GrammarCompiler& grammars() override { return *grammars_; }
  const GenerationDefaults& defaults() const override { return sampling; }
  const std::string& name() const override { return name_; }
  const std::string& path() const override { return path_; }

  void set_template(const std::string& source);
  void drop_template() { chat_template_.reset(); }
  int32_t id(std::string_view token) const;  // as the vocabulary spells it; "<0x0A>" for a byte
  int32_t byte(char c) const { return 3 + static_cast<unsigned char>(c); }  // the byte's own token
  // Events that say these tokens; the last one has `finish`.
  std::vector<TokenEvent> says(const std::vector<std::string_view>& tokens, FinishReason finish) const;
  TokenEvent token(std::string_view text, FinishReason finish = FinishReason::none) const;
  TokenEvent end() const;  // the model's end token

  ScriptedEngine scripted;
  GenerationDefaults sampling;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::string name_ = "toy", path_ = "/models/toy.gguf";
};

}  // namespace sluice
