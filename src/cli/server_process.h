// This very binary as a child process: a `sluice serve` that is started, waited for and ended, or a command
// that is run.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::cli {

class ServerProcess {
 public:
  // `words` follow `sluice serve`. Returns once the server says that it is ready. Standard error goes to
  // `log_path`, which is begun anew. Errors: what the server said last, or that `is_cancelled` became true
  // (asked ten times a second). The child is in a process group of its own (Ctrl-C is the parent's matter), and
  // ends when its parent does.
  static Result<std::unique_ptr<ServerProcess>> start(const std::vector<std::string>& words,
                                                      const std::string& log_path,
                                                      const std::function<bool()>& is_cancelled);
  // SIGTERM, and SIGKILL where that does not end it within a minute.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;

  const std::string& url() const { return url_; }
  const std::string& said() const { return said_; }  // the line that it was ready with
  bool is_alive();

 private:
  ServerProcess(pid_t pid, int out, std::string log_path)
      : pid_(pid), out_(out), log_path_(std::move(log_path)) {}
  Status wait_ready(const std::function<bool()>& is_cancelled);

  pid_t pid_;
  int out_;
  std::string log_path_, said_, url_;
  bool reaped_ = false;
};

// Runs `sluice WORDS` to its end and returns what it printed; its standard error is ours, and Ctrl-C reaches it
// too. Error: it failed.
Result<std::string> run_self(const std::vector<std::string>& words);

}  // namespace sluice::cli
