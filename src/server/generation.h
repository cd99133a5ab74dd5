// An answer that the engine generates: submits one engine request per choice, turns their events into text, and
// answers the exchange, streamed or whole. One object per HTTP request, on its connection's thread.
//
// - A client that leaves cancels all of its sequences at once.
// - Back-pressure: while more than limits::kStreamHighWater bytes are unsent, events stay in the engine's
// bounded
//   outbox, which pauses that sequence and no other.
// - The head of a stream is sent with the first event, so that what fails before has a status of its own; what
// fails
//   later is told inside the stream, and the connection closes without [DONE].
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/served_model.h"
#include "server/answer_account.h"
#include "server/choice.h"
#include "server/http.h"
#include "server/http_error.h"
#include "server/request_members.h"
#include "server/traffic/admission.h"
#include "server/traffic/passage.h"

namespace sluice {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // what echo shows; only filled where asked
  std::vector<int32_t>
      id_offsets;  // [ids] code points of `text` before each; only filled with echoed log-probabilities
};

// What is to be generated; made by an api_*.cc.
struct GenerationPlan {
  std::string id;          // of the answer: "cmpl-…"
  std::string request_id;  // of the HTTP request, for logs
  std::string model;       // as answers name it
  int64_t created = 0;     // Unix seconds
  GenerationOptions options;
  SamplingParams sampling;      // seed and top_logprobs included
  int default_max_tokens = -1;  // where the client gave none; -1: up to the context
  bool keep_tokens = false;     // the answer shows token ids or log-probabilities
  bool echo = false;
  bool batched = true;              // ServerConfig::pooled_io
  Pooling pooling = Pooling::none;  // embeddings: no token is generated
  std::vector<Prompt> prompts;
  std::shared_ptr<const Grammar> grammar;  // of options.grammar, compiled; each choice follows it by itself
  TimeNs deadline = 0;
  Lane lane = Lane::standard;
  uint32_t tenant = 0;  // place of the client's key among those configured, from 1; 0: none was needed
  ArrivalTimes arrival;
  std::string_view route;           // of the API, as the router has it
  TraceContext trace;               // false: it has none
  std::shared_ptr<RequestLog> log;  // where its account goes; null: nowhere
  Passage passage;                  // of the gates; tells the breaker how it ended
  Permit permit;                    // of the gates; what holds its place until it has its first token
  Pool pool = Pool::stable;
  // Of a canary's: gets the permit back where the engine fails before anything was sent, and sees to an answer.
  std::function<void(Permit)> fall_back;
};

struct Usage {
  int prompt_tokens = 0;      // of each prompt once
  int completion_tokens = 0;  // of all choices
  int cached_tokens = 0;
  int reasoning_tokens = 0;  // of completion_tokens
};

// Milliseconds by the engine's clock; known once the choice's last event is there.
struct Timings {
  bool known = false;
  double queue_ms = 0, prompt_ms = 0, predicted_ms = 0;
  int prompt_n = 0, predicted_n = 0, cache_n = 0;
};

// What a choice looks like to the format: choice k of prompt p has index p * n + k.
struct ChoiceView {
  const Choice& choice;
  const Prompt& prompt;
  const RequestStream& stream;
  bool first = false;  // streaming: its first piece
};

// How an API writes its answer. Stateless but for its plan; calls come on the connection's thread.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  // Streaming: appends SSE frames. `piece` is called when there is something new, and once with choice.ended().
  virtual void piece(std::string& out, const ChoiceView& view, const ChoiceDelta& delta,
                     const Timings& timings) = 0;
  virtual void usage(std::string& out, const Usage& usage) = 0;
  // The whole answer: begin, each choice in order, end.
  virtual void begin_whole(std::string& out) = 0;
  virtual void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta& delta) = 0;
  virtual void end_whole(std::string& out, const Usage& usage, const Timings& timings) = 0;

  // What ends a stream that went well. OpenAI's way: usage where it is wanted, and [DONE].
  virtual void close_stream(std::string& out, const Usage& usage, bool wants_usage);
  // What a stream says when its answer is cut; nothing comes after it.
  virtual void stream_error(std::string& out, const ApiError& error, std::string_view request_id);
  virtual ErrorStyle error_style() const { return ErrorStyle::openai; }
};

class Generation final : public HttpListener, public std::enable_shared_from_this<Generation> {
 public:
  // Checks the plan against the context, submits, and from then on answers by itself. On an error it answers at
  // once.
  static void start(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ServedModel> model,
                    GenerationPlan plan, std::unique_ptr<AnswerFormat> format);

  void on_wake() override { pump(); }
  void on_writable() override { pump(); }
  void on_sent() override { account_.close(now_ns()); }
  void on_gone(const char* why) override;
  void on_shutdown() override;

 private:
  struct Running {
    std::shared_ptr<RequestStream> stream;
    std::unique_ptr<Choice> choice;
    int prompt = 0;
    bool opened = false;    // streaming: something of it was sent
    bool reported = false;  // its end was sent, or counted
    bool drained = false;   // the stream's own last event was popped: its times may be read
  };

  Generation(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<ServedModel> model, GenerationPlan plan,
             std::unique_ptr<AnswerFormat> format);
  Status submit();
  Status submit_all();
  Request request_of(int prompt, int k) const;
  void pump();
  bool waits_in_vain() const;
  enum class Pumped : uint8_t { dry, more, failed };
  Pumped pump_choice(Running& running);
  RequestAccount account_head() const;
  void open_stream();
  void finish_answer();
  void fail(const ApiError& error, const char* reason);
  void hand_back();
  void add_pool(HttpResponse& response) const;
  int respond_error(const ApiError& error);  // the status
  void refuse(const ApiError& error);
  void cancel_all();
  void tell_pool(bool failed);
  void release();  // its place, and what it was charged for and did not take
  Usage usage() const;
  Timings timings(const Running& running) const;
  void about_to_send(size_t bytes) const;  // for who looks from outside
  void log_end(const char* how) const;

  std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<ServedModel> model_;  // what stands below refers to it
  GenerationPlan plan_;
  std::unique_ptr<AnswerFormat> format_;
  std::vector<Running> running_;
  bool stream_open_ = false;
  bool over_ = false;
  bool broken_ = false;  // logits that were none have been sampled from
  TimeNs submitted_ = 0;
  TimeNs first_token_ = 0;
  AnswerAccount account_;
};

// Registered at start, so that the first scrape shows them.
void register_generation_meters();

}  // namespace sluice
