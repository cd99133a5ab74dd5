// Runs a room's tests. A test that does not end says where each of its threads stands before the program gives
// up: a hang that comes once in hundreds of runs, on a machine that nobody can look into, still leaves
// evidence.
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace {

// The longest test takes a tenth of it under a sanitizer on a busy machine.
constexpr unsigned kTestSeconds = 300;
constexpr int kStackSignal = SIGUSR2;
constexpr int kExitStatus = 3;

char running[256];
sem_t stack_told;

void say(const char* text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

void tell_stack(int) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  __sanitizer_print_stack_trace();
#else
  void* frames[48];
  backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
#endif
  sem_post(&stack_told);
}

void tell_thread(const char* tid) {
  say("--- thread ");
  say(tid);
  say("\n");
  if (syscall(SYS_tgkill, getpid(), atoi(tid), kStackSignal) != 0) return;
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 5;
  if (sem_timedwait(&stack_told, &until) != 0) say("does not answer\n");
}

// A signal's handler: no memory is asked for, since the thread that it interrupts may hold the allocator's
// lock.
void give_up(int) {
  alarm(30);  // the default action by then, should a stack not be told
  signal(SIGALRM, SIG_DFL);
  say("\n[ HANGS    ] ");
  say(running);
  say(": its threads' stacks:\n");
  const int tasks = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  alignas(dirent64) char entries[4096];
  for (long got; (got = syscall(SYS_getdents64, tasks, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const dirent64*>(entries + at);
      if (entry->d_name[0] != '.') tell_thread(entry->d_name);
      at += entry->d_reclen;
    }
  }
  _exit(kExitStatus);
}

class HangWatch final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    snprintf(running, sizeof running, "%s.%s", test.test_suite_name(), test.name());
    alarm(kTestSeconds);
  }
  void OnTestEnd(const testing::TestInfo&) override { alarm(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  sem_init(&stack_told, 0, 0);
  void* warm[1];
  (void)backtrace(warm, 1);  // loads what it needs, which a handler must not
  signal(SIGALRM, give_up);
  signal(kStackSignal, tell_stack);
  testing::UnitTest::GetInstance()->listeners().Append(new HangWatch);  // gtest's from here
  return RUN_ALL_TESTS();
}
