#include "server/testing/toy_model.h"

#include <fmt/format.h>

#include <thread>

#include "engine/engine_door.h"

namespace sluice {

ScriptedEngine::ScriptedEngine() {
  info_.context = 512;
  info_.max_requests = 1024;
  info_.block_tokens = 16;
  info_.spec.context = 512;
}

Result<std::shared_ptr<RequestStream>> ScriptedEngine::submit(Request request, std::function<void()> notify) {
  std::lock_guard lock(mutex_);
  if (live_.size() >= accept_at_most) return Error{ErrorCode::kResourceExhausted, "The queue is full.", ""};
  auto stream = std::make_shared<RequestStream>(outbox);
  stream->door_ = std::make_shared<EngineDoor>();
  stream->notify_ = std::move(notify);
  if (request.pooling != Pooling::none) stream->pooled_ = pooled;
  stream->times_.submitted = now_ns();
  stream->progress_.spans.start(Span::queue, stream->times_.submitted);
  if (script) {
    for (const TokenEvent& event : script(request))
      CHECK(stream->events_.push(event), "a script longer than the outbox");
    if (!stream->notified_.exchange(true)) stream->notify_();
  }
  live_.push_back({std::move(request), stream});
  changed_.notify_all();
  return stream;
}

void ScriptedEngine::push(RequestStream& stream, const TokenEvent& event) {
  stream.events_.push(event);
  if (!stream.notified_.exchange(true)) stream.notify_();
}

bool ScriptedEngine::emit(size_t request, const TokenEvent& event) {
  std::shared_ptr<RequestStream> stream;
  {
    std::lock_guard lock(mutex_);
    stream = live_.at(request).stream;
  }
  if (stream->events_.size() >= stream->events_.capacity()) return false;
  push(*stream, event);
  return true;
}

void ScriptedEngine::set_prompt_logprobs(size_t request, std::vector<TokenLogprobs> logprobs) {
  std::lock_guard lock(mutex_);
  live_.at(request).stream->prompt_logprobs_ = std::move(logprobs);
}

void ScriptedEngine::wait_submitted(size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return live_.size() >= count; });
}

bool ScriptedEngine::cancelled(size_t request) {
  std::lock_guard lock(mutex_);
  return live_.at(request).stream->unwanted_.load() != FinishReason::none;
}

void ScriptedEngine::wait_cancelled(size_t request) {
  while (!cancelled(request)) std::this_thread::yield();
}

Request ScriptedEngine::request(size_t i) {
  std::lock_guard lock(mutex_);
  return live_.at(i).request;
}

size_t ScriptedEngine::submitted() {
  std::lock_guard lock(mutex_);
  return live_.size();
}

size_t ScriptedEngine::waiting_events(size_t request) {
  std::lock_guard lock(mutex_);
  return live_.at(request).stream->events_.size();
}

namespace {

VocabularyData toy_vocabulary() {
  VocabularyData v;
  v.kind = VocabularyKind::kSentencePieceBpe;
  const auto add = [&](std::string text, TokenType type) {
    v.tokens.push_back(std::move(text));
    v.types.push_back(type);
    v.scores.push_back(-float(v.scores.size()));
  };
  add("<unk>", TokenType::kUnknown);
  add("<s>", TokenType::kControl);
  add("<|im_end|>", TokenType::kControl);
  for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c), TokenType::kNormal);
  for (char c = 'A'; c <= 'Z'; ++c) add(std::string(1, c), TokenType::kNormal);
  for (char c = '0'; c <= '9'; ++c) add(std::string(1, c), TokenType::kNormal);
  for (const char* text : {"\xE2\x96\x81", ".", "ABC", "DEF", "GH", "hello", "\xE2\x96\x81world", "\n"})
    add(text, TokenType::kNormal);
  v.bos_id = 1;
  v.eos_id = 2;
  v.unk_id = 0;
  v.add_bos = false;
  v.add_space_prefix = false;
  return v;
}

}  // namespace

ToyModel::ToyModel() {
  auto tokenizer = Tokenizer::create(toy_vocabulary());
  CHECK(tokenizer.ok());
  tokenizer_ = std::move(tokenizer).value();
  scripted.info_.spec.vocab = tokenizer_->size();
  scripted.info_.end_ids = {2};
  GrammarLimits unhurried;  // a sanitizer's build on a busy machine must answer the same
  unhurried.compile_cpu_ns = unhurried.mask_cpu_ns = 3'600'000'000'000;
  grammars_ =
      std::make_unique<GrammarCompiler>(*tokenizer_, tokenizer_->size(), scripted.info_.end_ids, unhurried);
  set_template(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt "
      "%}[assistant]{% endif %}");
}

void ToyModel::set_template(const std::string& source) {
  auto made = ChatTemplate::create(source, "", "");
  CHECK(made.ok());
  chat_template_.emplace(std::move(made).value());
}

int32_t ToyModel::id(std::string_view token) const {
  if (token.starts_with("<0x")) return 3 + int32_t(std::stoul(std::string(token.substr(3, 2)), nullptr, 16));
  return tokenizer_->find(token);
}

TokenEvent ToyModel::token(std::string_view text, FinishReason finish) const {
  TokenEvent event;
  event.id = id(text);
  CHECK(event.id >= 0);
  event.finish = finish;
  event.time = now_ns();
  event.logprobs.logprob = -0.5f;
  event.logprobs.rank = 1;
  event.logprobs.count = 2;
  event.logprobs.ids[0] = event.id;
  event.logprobs.values[0] = -0.5f;
  event.logprobs.ids[1] = id("a");
  event.logprobs.values[1] = -1.25f;
  return event;
}

TokenEvent ToyModel::end() const {
  TokenEvent event = token("<|im_end|>", FinishReason::stop);
  event.stop_id = event.id;
  return event;
}

std::vector<TokenEvent> ToyModel::says(const std::vector<std::string_view>& tokens, FinishReason finish) const {
  std::vector<TokenEvent> events;
  for (std::string_view text : tokens) events.push_back(token(text));
  if (finish == FinishReason::stop) {
    events.push_back(end());
  } else if (!events.empty()) {
    events.back().finish = finish;
  } else {
    TokenEvent event;
    event.finish = finish;
    events.push_back(event);
  }
  return events;
}

}  // namespace sluice
