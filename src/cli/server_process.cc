#include "cli/server_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "base/clock.h"

namespace sluice::cli {
namespace {

constexpr TimeNs kMostStop_ns = 60'000'000'000;

// The last line that says something, without the program's name before it.
std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  if (last.starts_with("sluice: ")) last.erase(0, 8);
  return last;
}

std::string url_in(const std::string& line) {
  const size_t begin = line.find("http://");
  return begin == std::string::npos ? "" : line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

struct Child {
  std::vector<std::string> words;  // behind the program's name
  int log = -1;                    // where its standard error goes; -1: to ours
  bool own_group = false;
};

// What the user's own server takes from the environment (keys, faults, a collector) is not for one that is
// measured: its client has no key, and traces would be measured with it.
std::vector<char*> environment() {
  std::vector<char*> kept;
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (const std::string_view text = *entry; !text.starts_with("SLUICE_") && !text.starts_with("OTEL_"))
      kept.push_back(*entry);
  kept.push_back(nullptr);
  return kept;
}

// Its process id, and in `out` the reading end of its standard output.
Result<pid_t> spawn(const Child& child, int& out) {
  std::vector<std::string> all = {"sluice"};
  all.insert(all.end(), child.words.begin(), child.words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::vector<char*> envp = environment();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error{ErrorCode::kIo, std::strerror(errno)};
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {  // nothing but system calls from here on
    if (child.own_group) setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(ends[1], STDOUT_FILENO);
    if (child.log >= 0) dup2(child.log, STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return Error{ErrorCode::kIo, fmt::format("fork: {}", std::strerror(errno))};
  }
  out = ends[0];
  return pid;
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const std::vector<std::string>& words,
                                                            const std::string& log_path,
                                                            const std::function<bool()>& is_cancelled) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log < 0) return Error{ErrorCode::kIo, fmt::format("{}: {}", log_path, std::strerror(errno))};
  Child child{.words = {"serve"}, .log = log, .own_group = true};
  child.words.insert(child.words.end(), words.begin(), words.end());
  int out = -1;
  const Result<pid_t> pid = spawn(child, out);
  close(log);
  if (!pid) return pid.error();
  std::unique_ptr<ServerProcess> server(new ServerProcess(*pid, out, log_path));
  if (Status ready = server->wait_ready(is_cancelled); !ready) return std::move(ready).error();
  return server;
}

Status ServerProcess::wait_ready(const std::function<bool()>& is_cancelled) {
  for (;;) {
    pollfd ready{out_, POLLIN, 0};
    const int n = poll(&ready, 1, 100);
    if (is_cancelled()) return Error{ErrorCode::kUnavailable, "interrupted"};
    if (n <= 0) continue;
    char buffer[512];
    const ssize_t got = read(out_, buffer, sizeof buffer);
    if (got <= 0) break;
    said_.append(buffer, size_t(got));
    if (said_.find('\n') == std::string::npos) continue;
    said_.resize(said_.find('\n'));
    url_ = url_in(said_);
    if (!url_.empty()) return {};
  }
  // It is over, or will be in a moment: then its log is whole.
  is_alive();
  const std::string why = last_line(log_path_);
  return Error{ErrorCode::kUnavailable, why.empty() ? "the server ended without a word" : why};
}

bool ServerProcess::is_alive() {
  if (!reaped_ && waitpid(pid_, nullptr, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

ServerProcess::~ServerProcess() {
  if (is_alive()) kill(pid_, SIGTERM);
  const TimeNs begin = now_ns();
  while (is_alive()) {
    if (now_ns() - begin > kMostStop_ns) kill(pid_, SIGKILL);
    poll(nullptr, 0, 5);
  }
  close(out_);
}

Result<std::string> run_self(const std::vector<std::string>& words) {
  int out = -1, status = 0;
  const Result<pid_t> pid = spawn({.words = words}, out);
  if (!pid) return pid.error();
  std::string said;
  char buffer[4096];
  for (ssize_t got; (got = read(out, buffer, sizeof buffer)) != 0;) {
    if (got > 0)
      said.append(buffer, size_t(got));
    else if (errno != EINTR)
      break;
  }
  close(out);
  while (waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return said;
  return Error{ErrorCode::kInternal, fmt::format("sluice {} failed", words.empty() ? "" : words[0])};
}

}  // namespace sluice::cli
