// A small HTTP/1.1 client for measuring servers: many exchanges at once on one thread, over epoll, with the
// times at which parts of an answer came. Knows server-sent events; no TLS, no redirects. Everything runs on
// the calling thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace sluice::cli {

struct Target {
  std::string host;
  std::string port = "80";
  std::string prefix;                // path before /v1, without a slash at the end
  std::string api_key;               // empty: none is sent
  std::string lane;                  // X-Priority; empty: none is sent
  std::vector<std::string> headers;  // "NAME: VALUE", with every request
  std::string request_id_prefix;     // of X-Request-Id, which an exchange's number follows; empty: none is sent
};

// http://HOST[:PORT][/PREFIX], HOST may be [v6]. A "/v1" at the end of the prefix is taken off.
Result<Target> parse_target(const std::string& url);

struct Exchange {
  std::string method = "POST";
  std::string path;  // "/v1/completions", after the prefix
  std::string body;
};

struct Outcome {
  std::string error;  // empty: the answer came whole, with status 200
  int status = 0;
  std::string body;  // of an answer that is no event stream; cut at 64 KiB
  TimeNs late = 0;   // in an open loop: from when it should have begun until it did
  TimeNs sent = 0;   // connection open, request handed to the kernel
  TimeNs end = 0;
  std::vector<TimeNs> events;  // when each event with a choice came
  int usage_tokens = -1;       // completion_tokens of the usage event; -1: none came
  bool open = false;           // the load was over before the answer was; `end` is when

  int tokens() const { return usage_tokens >= 0 ? usage_tokens : int(events.size()); }
};

struct Load {
  std::vector<Exchange> exchanges;
  int concurrency = 1;        // closed loop, where `start` is empty
  std::vector<TimeNs> start;  // open loop: when each begins, after the load's own start, ascending
  TimeNs timeout = 0;         // of one exchange
  bool keep_alive = true;     // false: a connection for each exchange
  // Closed loop: makes the exchange of a number as it begins, behind those of the list, until the load is over.
  std::function<Exchange(size_t)> next;
  TimeNs stop_after = 0;               // > 0: then the load is over, whatever is open
  std::function<bool()> is_cancelled;  // asked about ten times a second; true: it is over now
};

// Outcomes in the order of the exchanges. `progress` hears of how many have ended, about ten times a second.
Result<std::vector<Outcome>> run_load(const Target& target, const Load& load,
                                      const std::function<void(size_t)>& progress);

// One exchange. An answer with another status than 200 is an outcome, not an error.
Result<Outcome> fetch(const Target& target, const Exchange& exchange, TimeNs timeout);

}  // namespace sluice::cli
