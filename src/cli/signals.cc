#include "cli/signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace sluice::cli {
namespace {

std::atomic<int> seen{0};
std::atomic<TimeNs> first_at{0};
std::atomic<bool> hung_up{false};
std::atomic<int> event_fd{-1};

void ring() {
  const int saved = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd.load(), &one, sizeof one);
  errno = saved;
}

void on_signal(int signal) {
  const TimeNs now = now_ns();
  if (is_impatient(first_at.load(), now)) _exit(128 + signal);
  if (seen.fetch_add(1) == 0) first_at.store(now);
  ring();
}

void on_hangup(int) {
  hung_up.store(true);
  ring();
}

}  // namespace

Signals::Signals(Watch watch) {
  CHECK(event_fd.load() < 0);
  event_fd.store(eventfd(0, EFD_CLOEXEC));
  CHECK(event_fd.load() >= 0);
  // Explicitly, whatever was inherited: a shell starts background jobs with SIGINT ignored.
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  if (watch != Watch::both) return;
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_hangup;
  action.sa_flags = SA_RESTART;
  sigaction(SIGHUP, &action, nullptr);
}

// The handlers stay where a signal has begun the end: the same wish said twice is none to die by.
Signals::~Signals() {
  if (seen.load() == 0)
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  close(event_fd.exchange(-1));
}

bool Signals::take_hangup() { return hung_up.exchange(false); }
int Signals::count() { return seen.load(); }
void Signals::reset() {
  seen.store(0);
  first_at.store(0);
}
void Signals::wake() { ring(); }

void Signals::wait() {
  // poll and then read, not read alone: ThreadSanitizer runs handlers within the former, but holds them back
  // until the latter returns.
  pollfd bell{event_fd.load(), POLLIN, 0};
  while (poll(&bell, 1, -1) < 0 && errno == EINTR) {
  }
  uint64_t count = 0;
  while (read(bell.fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace sluice::cli
