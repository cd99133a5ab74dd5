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

// Between fork and exec: nothing but system calls.
[[noreturn]] void become_server(const std::vector<char*>& argv, int out, int log, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  dup2(out, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const std::vector<std::string>& words,
                                                            const std::string& log_path,
                                                            const std::function<bool()>& is_cancelled) {
  std::vector<std::string> all = {"sluice", "serve"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  int out[2];
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log < 0) return Error{ErrorCode::kIo, fmt::format("{}: {}", log_path, std::strerror(errno))};
  if (pipe2(out, O_CLOEXEC) != 0) {
    close(log);
    return Error{ErrorCode::kIo, std::strerror(errno)};
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) become_server(argv, out[1], log, parent);
  close(log);
  close(out[1]);
  if (pid < 0) {
    close(out[0]);
    return Error{ErrorCode::kIo, fmt::format("fork: {}", std::strerror(errno))};
  }
  std::unique_ptr<ServerProcess> server(new ServerProcess(pid, out[0], log_path));
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

}  // namespace sluice::cli
