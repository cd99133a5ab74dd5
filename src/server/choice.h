// One choice of an answer: token events in, text and what belongs to it out. The same for streamed and whole
// answers, so these cannot differ. Knows no JSON.
//
// Text is held back while it may be the beginning of a stop string or half a character. A token is released
// together with the first text of it that is (for a character made of several tokens: all of them with that
// character), so log-probabilities travel with their text. When a stop string trims the end, tokens that lie
// wholly in what is left out are dropped; usage counts them all the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/request_members.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/stop_matcher.h"
#include "text/tool_calls.h"

namespace sluice {

struct ShownToken {
  int32_t id = -1;
  int text_offset = 0;     // code points of the answer's text before it (an echoed prompt included)
  bool ends = false;       // the end token: stands for no text
  bool hidden = false;     // a control token that is not shown: stands for no text either
  TokenLogprobs logprobs;  // filled where asked
};

// What is new since the last take().
struct ChoiceDelta {
  std::string thoughts;  // before the answer, where options.reasoning says that there may be some: not in text
  std::string text;
  std::vector<ToolCallPiece>
      calls;  // of tools, where options.tool_format says that there may be some: not in text
  std::vector<ShownToken> tokens;  // only where the choice keeps tokens
  bool empty() const { return thoughts.empty() && text.empty() && calls.empty() && tokens.empty(); }
  void clear() { thoughts.clear(), text.clear(), calls.clear(), tokens.clear(); }  // keeps their memory
};

// A delta's runs of text after its thoughts and its pieces of calls, in the order in which the model wrote
// them.
template <typename Text, typename Call>
void in_order(const ChoiceDelta& delta, Text&& text, Call&& call) {
  const std::string_view all = delta.text;
  size_t at = 0;
  for (const ToolCallPiece& piece : delta.calls) {
    const size_t before = std::min(piece.text_before, all.size());
    if (before > at) text(all.substr(at, before - at));
    at = std::max(at, before);
    call(piece);
  }
  if (at < all.size()) text(all.substr(at));
}

// A run of text, or a call with its pieces joined.
struct AnswerPart {
  bool is_call = false;
  std::string name;  // of the tool
  std::string text;  // or the call's arguments
};
std::vector<AnswerPart> parts_of(const ChoiceDelta& whole);

class Choice {
 public:
  // `keep_tokens`: the answer shows token ids or log-probabilities. `first_offset`: code points of an echoed
  // prompt.
  Choice(int index, const Tokenizer& tokenizer, const GenerationOptions& options, bool keep_tokens,
         int first_offset);

  // Next event of its stream. True: the choice has ended (by this event, or by a stop string); no more may be
  // pushed.
  bool push(const TokenEvent& event);
  // Valid until the next push or take: its memory is used again, so that a token costs none.
  const ChoiceDelta& take();

  int index() const { return index_; }
  bool ended() const { return finish_ != FinishReason::none; }
  FinishReason finish() const { return finish_; }
  bool stopped_by_text() const { return matcher_.stopped(); }
  const std::string& stop_text() const { return matcher_.matched(); }
  // Of tools: whether there was one and the last came to its end. One that was cut short is no call.
  bool called() const { return tools_.calls() > 0 && tools_.calls() == tools_.whole_calls(); }
  int32_t stop_id() const { return stop_id_; }  // a stop_token_ids entry that ended it; -1: none
  int completion_tokens() const {
    return completion_tokens_;
  }  // sampled, the end token and trimmed ones included
  int reasoning_tokens() const { return reasoning_tokens_; }  // of them, those that were thoughts
  TimeNs first_time() const { return first_time_; }           // of its first token; 0: none
  TimeNs last_time() const { return last_time_; }

 private:
  struct Waiting {
    ShownToken token;
    size_t begin;  // bytes of text before it
  };
  void feed(std::string_view text);
  void give(std::string_view text);
  void give_end();
  void append_text(int32_t id, std::string& out);
  void release(bool all);
  void finish_text();
  void drop_taken();

  const int index_;
  const Tokenizer* tokenizer_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  const bool reasons_;
  ReasoningParser reasoning_;
  const ToolFormat tool_format_;
  const bool one_call_;
  const bool calls_alone_;  // text is white space between calls, or a call that was cut short
  ToolCallParser tools_;
  const std::vector<int32_t> client_stop_ids_;
  const bool keep_tokens_;
  const bool show_control_;
  const int min_tokens_;
  size_t made_bytes_ = 0;      // text that came out of the detokenizer
  size_t released_bytes_ = 0;  // of it, what the stop matcher let through
  int made_chars_ = 0;
  std::vector<Waiting> waiting_;
  ChoiceDelta delta_;
  bool taken_ = false;  // delta_ is
  std::string made_, passed_,
      answer_;  // of one token: from the detokenizer, past the matcher, past the thoughts
  FinishReason finish_ = FinishReason::none;
  int32_t stop_id_ = -1;
  int completion_tokens_ = 0, reasoning_tokens_ = 0;
  TimeNs first_time_ = 0, last_time_ = 0;
};

// Code points in valid UTF-8.
int code_points(std::string_view text);

}  // namespace sluice
