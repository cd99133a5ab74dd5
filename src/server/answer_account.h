// Keeps the account of one answer while it is made, and hands it to the log when its last byte is sent. The
// engine's part of the spans comes from each choice's SpanClock; what lies before and after it is counted here.
// On the connection's thread.
//
//   first byte … submission      read, parse, tokenize
//   submission … its end         the engine's spans; text that is formatted and sent meanwhile costs no time
//   … the last choice's end      other_choices
//   … the last byte is made      format, less the time in which the client did not take what was there (write)
//   … the last byte is sent      write
#pragma once

#include <memory>
#include <vector>

#include "observe/request_log.h"
#include "server/token_text.h"

namespace sluice {

struct ArrivalTimes {
  TimeNs first_byte = 0;
  TimeNs last_byte = 0;
  TimeNs prepared_from = 0;  // when its turn in the text pool had come, where it had to wait for one
  TimeNs parsed = 0;         // when JSON had become values; 0: not told, and part of `tokenize`
};

// The account of a request that was answered without the engine, now. `head.status` is set.
RequestAccount refused_at(RequestAccount head, TimeNs first_byte, TimeNs now = now_ns());

class AnswerAccount {
 public:
  AnswerAccount() = default;
  ~AnswerAccount();  // what was begun and never closed ends as "shutdown"
  AnswerAccount(const AnswerAccount&) = delete;
  AnswerAccount& operator=(const AnswerAccount&) = delete;

  // `ledger`: of the engine that answers, which outlives this; null: it keeps none.
  void open(std::shared_ptr<RequestLog> log, RequestAccount head, const ArrivalTimes& arrival,
            const StepLedger* ledger = nullptr);
  void add_choice(std::shared_ptr<const RequestProgress> progress);
  void begin();  // all choices are submitted
  void drop();   // they were not: there will be no account

  void token(size_t choice, const TokenEvent& event, const TokenText& text = {});
  // By its own account: a stop string ends it before the engine hears of it. `finish_reason` null: the
  // request's.
  void choice_ended(size_t choice, const char* finish_reason, TimeNs now = now_ns());
  // The answer's first byte is made, with this status. Only the first word counts.
  void opened(int status, TimeNs now = now_ns());
  // The client does not take what there is for it; it does again.
  void block(TimeNs now = now_ns());
  void unblock(TimeNs now = now_ns());
  // The answer's last byte is made, or there will be none. The first word counts for the time, the last for
  // how.
  void answered(const char* how, TimeNs now = now_ns());
  // The last byte is sent, or the client is gone.
  void close(TimeNs now);

 private:
  struct Choice {
    std::shared_ptr<const RequestProgress> progress;
    SpanClock::Reading reading;  // once ended
    bool ended = false;
    const char* finish_reason = nullptr;
    int generated = 0;
    TimeNs first_token = 0, last_token = 0, longest_gap = 0;
    int32_t last_step = 0;
    StreamWatch watch;
    std::vector<std::pair<OddFacts, int>>
        odd;  // with the token's number; until the records of its steps are there
    std::vector<Anomaly> anomalies;
    int anomalies_cut = 0;
    bool broken = false;  // it has had logits that were none
  };
  static constexpr size_t kMostUnsettled = 64;

  void watch(Choice& choice, const TokenEvent& event, const TokenText& text);
  void settle(Choice& choice, int64_t until_step);
  void tell(const Anomaly& anomaly) const;

  SpanTimes before(const SpanClock::Reading& reading) const;
  SpanClock::Reading reading_of(const Choice& choice, TimeNs now) const;

  std::shared_ptr<RequestLog> log_;
  const StepLedger* ledger_ = nullptr;
  std::shared_ptr<RunningRequest> running_;
  RequestAccount head_;
  ArrivalTimes arrival_;
  std::vector<Choice> choices_;
  TokenLists tokens_;
  size_t tokens_kept_ = 0;
  TimeNs answered_at_ = 0;  // 0: not yet
};

}  // namespace sluice
