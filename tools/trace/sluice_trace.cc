// sluice-trace, what `sluice trace` runs: looks at a running server from outside, through its USDT probes and
// the kernel's tracepoints (trace.bpf.c), and shows where single requests spend their time. Nothing is set in
// the server, and nothing of it changes.
//
// A program of its own, since it needs libbpf and libelf (LGPL), which the server is to know nothing of.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "event.h"

// The program for the kernel, as the build made it.
asm(".section .rodata\n"
    ".balign 8\n"
    "trace_object: .incbin \"" TRACE_OBJECT
    "\"\n"
    "trace_object_end: .byte 0\n"
    ".text\n");
extern "C" const char trace_object[], trace_object_end[];

namespace {

constexpr const char* kHelp =
    "Where the requests of a running server spend their time, seen from outside\n"
    "Usage: sluice trace [PID] [--request ID | --slow MS] [--seconds N]\n\n"
    "  PID            of `sluice serve`; may be left out where there is one\n"
    "  --request ID   every event of this request (its X-Request-Id), as it comes\n"
    "  --slow MS      the events of each request that took longer, as it ends\n"
    "  --seconds N    stop after so long; without, on Ctrl-C\n\n"
    "Without --request and --slow: one line per request, as it ends. Needs root.\n";

// How long the last bytes of an answer may take after the engine's last word.
constexpr unsigned long long kLastBytesNs = 200'000'000;

volatile std::sig_atomic_t stopped = 0;
std::string libbpf_said;  // the last complaint

int keep_complaint(libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_WARN) return 0;
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  libbpf_said = text;
  return 0;
}

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "sluice trace: %s\n", why.c_str());
  std::exit(1);
}
std::string with_reason(std::string what) {
  if (!libbpf_said.empty()) what += "\n  libbpf says: " + libbpf_said;
  while (what.ends_with('\n')) what.pop_back();
  return what;
}

unsigned long long monotonic_ns() {  // the clock of bpf_ktime_get_ns
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec;
}

double ms(long long ns) { return double(ns) * 1e-6; }

// -- Whom to look at
// --------------------------------------------------------------------------------------------

// Not the name that it was started by: since then that may be another build's, or nobody's. Empty: not there,
// or not to be looked at.
std::string exe_of(int pid) {
  const std::string link = "/proc/" + std::to_string(pid) + "/exe";
  char path[1];
  return readlink(link.c_str(), path, sizeof path) > 0 ? link : std::string();
}

bool serves(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  std::string program, command;
  return std::getline(file, program, '\0') && std::getline(file, command, '\0') && command == "serve" &&
         (program == "sluice" || program.ends_with("/sluice"));
}

int only_server() {
  std::vector<int> found;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = proc ? readdir(proc) : nullptr) {
    const int pid = std::atoi(entry->d_name);
    if (pid > 0 && serves(pid)) found.push_back(pid);
  }
  if (proc) closedir(proc);
  if (found.empty()) fail("no `sluice serve` runs here; give its PID if it has another name");
  if (found.size() == 1) return found[0];
  std::string list;
  for (const int pid : found) list += " " + std::to_string(pid);
  fail("several servers run here; give the PID of one:" + list);
}

// -- What it says
// -----------------------------------------------------------------------------------------------

struct Requested {
  std::string id;
  unsigned long long started = 0;
  long long waited = -1, first = 0, longest = 0, longest_step = 0;
  int tokens = 0, preempted = 0, sends = 0;
  long long bytes = 0;
  totals engine_then{};
  std::vector<event> events;  // kept where they will be shown
};

class Report {
 public:
  Report(std::string only, long long slow_ms) : only_(std::move(only)), slow_ms_(slow_ms) {
    if (only_.empty() && slow_ms_ < 0)
      std::printf("%-32s %9s %9s %9s %7s %9s %8s %7s %9s %4s %9s  %s\n", "request", "queue ms", "prefill",
                  "decode", "tokens", "longest", "step", "sends", "bytes", "pre", "not run", "ended");
    std::fflush(stdout);
  }

  void take(const event& e) {
    if (!only_.empty() && only_ != e.id) return;
    seen_ = true;
    if (e.kind == EVENT_SHED) {
      std::printf("%-32s refused: %s\n", e.id, e.word);
    } else if (e.kind == EVENT_START) {
      Requested& r = requests_[e.sequence] = {};
      r.id = e.id;
      r.started = e.time;
      r.engine_then = e.engine;
      note(r, e);
    } else if (e.kind == EVENT_SEND) {
      send(e);
    } else if (const auto it = requests_.find(e.sequence);
               it != requests_.end()) {  // it began before us otherwise
      count(it->second, e);
      note(it->second, e);
      if (e.kind == EVENT_END) {
        ended_.emplace_back(std::move(it->second), e);
        requests_.erase(it);
      }
    }
    std::fflush(stdout);
  }

  bool seen() const { return seen_; }

  // Tells of requests that ended before `time`; later, nothing more comes of them.
  void tell_ended(unsigned long long time) {
    for (; !ended_.empty() && ended_.front().second.time < time; ended_.pop_front())
      tell(ended_.front().first, ended_.front().second);
    std::fflush(stdout);
  }

  void say_lost(unsigned long long lost) const {
    if (lost > 0)
      std::fprintf(stderr, "sluice trace: %llu events were lost: they came faster than they were read\n", lost);
  }

 private:
  static constexpr size_t kEventsShown = 100000;  // of one request

  static void count(Requested& r, const event& e) {
    if (e.kind == EVENT_ADMIT) r.waited = e.b;
    if (e.kind == EVENT_PREEMPT) ++r.preempted;
    if (e.kind != EVENT_TOKEN) return;
    if (r.tokens++ == 0)
      r.first = e.c;
    else if (e.c > r.longest)
      r.longest = e.c, r.longest_step = e.a;
  }

  // A send names the request and no choice: of several it is counted with the first. The last bytes of an
  // answer go out after the engine's last word.
  void send(const event& e) {
    Requested* of = nullptr;
    for (auto& [sequence, r] : requests_)
      if (!of && r.id == e.id) of = &r;
    for (auto it = ended_.rbegin(); !of && it != ended_.rend(); ++it)  // ids may come again: the newest
      if (it->first.id == e.id) of = &it->first;
    if (!of) return;
    ++of->sends;
    of->bytes += std::max(0ll, e.a);
    note(*of, e);
  }

  void note(Requested& r, const event& e) {
    if (!only_.empty()) return show(r, e);
    if (slow_ms_ >= 0 && r.events.size() < kEventsShown) r.events.push_back(e);
  }

  void tell(Requested& r, const event& end) {
    if (!only_.empty()) return;  // shown as it came
    if (slow_ms_ < 0) return line(r, end);
    if (end.b < slow_ms_ * 1000000) return;
    std::printf("\n%s: %.1f ms\n", r.id.c_str(), ms(end.b));
    for (const event& each : r.events) show(r, each);
  }

  static void line(const Requested& r, const event& e) {
    const long long first = r.tokens ? r.first : e.b, waited = r.waited < 0 ? e.b : r.waited;
    std::printf("%-32s %9.1f %9.1f %9.1f %7d %9.1f %8lld %7d %9lld %4d %9.1f  %s\n", r.id.c_str(), ms(waited),
                ms(first - waited), ms(e.b - first), r.tokens, ms(r.longest), r.longest_step, r.sends, r.bytes,
                r.preempted, ms((long long)(e.engine.ready_ns - r.engine_then.ready_ns)), e.word);
  }

  // One event, with the time since the request began, and what the operating system did since its last event.
  static void show(Requested& r, const event& e) {
    std::printf("%12.3f  ", ms((long long)(e.time - r.started)));
    switch (e.kind) {
      case EVENT_START:
        std::printf("start     %lld prompt tokens, at most %lld more", e.a, e.b);
        break;
      case EVENT_ADMIT:
        std::printf("admitted  after %.3f ms, %lld tokens cached", ms(e.b), e.a);
        break;
      case EVENT_TOKEN:
        std::printf("token     %lld in step %lld, after %.3f ms", e.b, e.a, ms(e.c));
        break;
      case EVENT_PREEMPT:
        std::printf("preempted %lld tokens to be computed again", e.a);
        break;
      case EVENT_END:
        std::printf("end       %s, %lld tokens, %.3f ms", e.word, e.a, ms(e.b));
        break;
      case EVENT_SEND:
        if (e.a >= 0)
          std::printf("sent      %lld bytes on descriptor %lld in %.3f ms", e.a, e.c, ms(e.b));
        else
          std::printf("not sent  descriptor %lld: %s", e.c, std::strerror(int(-e.a)));
        break;
    }
    const totals& then = r.engine_then;
    const auto ready = e.engine.ready_ns - then.ready_ns, faults = e.engine.faults - then.faults;
    const auto off = e.engine.off_ns - then.off_ns;
    if (e.kind != EVENT_START && off > 100000)
      std::printf("; engine off the processor %.3f ms", ms((long long)off));
    if (e.kind != EVENT_START && ready > 100000)
      std::printf(", of it ready to run %.3f ms", ms((long long)ready));
    if (e.kind != EVENT_START && faults > 0) std::printf("; %llu page faults", faults);
    std::printf("\n");
    r.engine_then = e.engine;
  }

  bool seen_ = false;  // anything of what was asked for
  const std::string only_;
  const long long slow_ms_;                           // below 0: not asked for
  std::map<unsigned long long, Requested> requests_;  // by sequence
  std::deque<std::pair<Requested, event>> ended_;     // with their last event
};

// -- Attaching
// --------------------------------------------------------------------------------------------------

bpf_program* program_of(bpf_object* object, const char* name) {
  bpf_program* program = bpf_object__find_program_by_name(object, name);
  if (!program) fail(std::string("the program for the kernel lacks ") + name);
  return program;
}

bpf_object* load(int pid) {
  if (access("/sys/kernel/btf/vmlinux", R_OK) != 0)
    fail("this kernel does not tell its types: /sys/kernel/btf/vmlinux is missing (CONFIG_DEBUG_INFO_BTF)");
  bpf_object* object = bpf_object__open_mem(trace_object, size_t(trace_object_end - trace_object), nullptr);
  if (!object) fail(with_reason("the program for the kernel cannot be read"));
  bpf_map* constants = nullptr;
  bpf_map* map = nullptr;
  bpf_object__for_each_map(map, object) {
    if (std::string_view(bpf_map__name(map)).ends_with(".rodata")) constants = map;
  }
  size_t size = 0;
  void* value = constants ? const_cast<void*>(bpf_map__initial_value(constants, &size)) : nullptr;
  if (!value || size < sizeof pid) fail("the program for the kernel has no place for the server's id");
  std::memcpy(value, &pid, sizeof pid);
  if (const int error = bpf_object__load(object); error != 0) {
    if (error == -EPERM)
      fail(
          "the kernel does not let this user load programs: it takes root, or CAP_BPF and CAP_PERFMON (and a "
          "kernel that is not locked down)");
    fail(with_reason(std::string("the kernel does not take the program: ") + std::strerror(-error)));
  }
  return object;
}

void attach_probes(bpf_object* object, int pid, const std::string& exe) {
  for (const char* name :
       {"request_start", "request_admit", "token", "preempt", "request_end", "shed", "answer_write"}) {
    libbpf_said.clear();
    if (bpf_program__attach_usdt(program_of(object, name), pid, exe.c_str(), "sluice", name, nullptr)) continue;
    if (errno == ENOENT)
      fail(exe + " has no probe " + name +
           ": it was built without <sys/sdt.h> (Debian: systemtap-sdt-dev), or is another version");
    if (errno == EPERM || errno == EACCES)
      fail("this user may not attach to process " + std::to_string(pid) +
           ": it takes root, or CAP_PERFMON and CAP_SYS_PTRACE");
    fail(with_reason(std::string("cannot attach to ") + name + ": " + std::strerror(errno) +
                     " (uprobes need a kernel with CONFIG_UPROBE_EVENTS)"));
  }
}

// What does not attach is left out, and said.
void attach_system(bpf_object* object) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> parts = {
      {"sizes and times of sends", {"sys_enter", "sys_exit"}},
      {"run-queue delay and time off the processor", {"sched_switch", "sched_wakeup"}},
      {"page faults", {"page_fault_user"}}};
  for (const auto& [what, names] : parts) {
    for (const char* name : names) {
      libbpf_said.clear();
      if (bpf_program__attach(program_of(object, name))) continue;
      std::fprintf(stderr, "sluice trace: without %s: this kernel has no raw tracepoint %s (%s)\n", what, name,
                   std::strerror(errno));
      break;
    }
  }
}

unsigned long long lost_events(bpf_object* object) {
  unsigned int zero = 0;
  unsigned long long lost = 0;
  bpf_map_lookup_elem(bpf_object__find_map_fd_by_name(object, "lost"), &zero, &lost);
  return lost;
}

struct Asked {
  int pid = 0;
  std::string request;
  long long slow_ms = -1, seconds = 0;
};

[[noreturn]] void wrong_use(const std::string& what) {
  std::fprintf(stderr, "sluice trace: %s\nTry: sluice trace --help\n", what.c_str());
  std::exit(2);
}

long long number(const char* name, const char* text) {
  char* end = nullptr;
  const long long value = std::strtoll(text, &end, 10);
  if (*text == 0 || *end != 0 || value < 0)
    wrong_use(std::string(name) + ": expected a number, got '" + text + "'");
  return value;
}

Asked parse(int argc, char** argv) {
  Asked asked;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool takes = word == "--request" || word == "--slow" || word == "--seconds";
    if (word == "--help" || word == "-h") std::fputs(kHelp, stdout), std::exit(0);
    if (takes && i + 1 == argc) wrong_use(std::string(word) + " wants a value");
    if (word == "--request")
      asked.request = argv[++i];
    else if (word == "--slow")
      asked.slow_ms = number("--slow", argv[++i]);
    else if (word == "--seconds") {
      if ((asked.seconds = number("--seconds", argv[++i])) == 0)
        wrong_use("--seconds: expected at least 1, got '0'");
    } else if (word.starts_with("-"))
      wrong_use("unknown option " + std::string(word));
    else if (asked.pid != 0)
      wrong_use("one process at a time, got '" + std::string(word) + "' too");
    else
      asked.pid = int(number("PID", argv[i]));
  }
  if (!asked.request.empty() && asked.slow_ms >= 0) wrong_use("give --request or --slow, not both");
  if (asked.request.size() >= ID_BYTES) asked.request.resize(ID_BYTES - 1);
  return asked;
}

}  // namespace

int main(int argc, char** argv) {
  const Asked asked = parse(argc, argv);
  libbpf_set_print(keep_complaint);
  const int pid = asked.pid ? asked.pid : only_server();
  const std::string exe = exe_of(pid);
  if (exe.empty())
    fail("process " + std::to_string(pid) + " is not there, or this user may not look at it: " +
         std::strerror(errno) + (errno == EACCES || errno == EPERM ? "; run it as root" : ""));
  std::signal(SIGINT, [](int) { stopped = 1; });
  std::signal(SIGTERM, [](int) { stopped = 1; });

  bpf_object* object = load(pid);
  attach_probes(object, pid, exe);
  attach_system(object);
  Report report(asked.request, asked.slow_ms);
  const auto take = [](void* to, void* data, size_t) {
    static_cast<Report*>(to)->take(*static_cast<const event*>(data));
    return 0;
  };
  ring_buffer* ring =
      ring_buffer__new(bpf_object__find_map_fd_by_name(object, "events"), take, &report, nullptr);
  if (!ring) fail(with_reason("the kernel has no ring buffers for programs (5.8 or newer)"));
  std::fprintf(stderr, "sluice trace: attached to process %d\n", pid);
  const std::time_t until = asked.seconds ? std::time(nullptr) + asked.seconds : 0;
  while (!stopped && (!until || std::time(nullptr) < until) &&
         access(("/proc/" + std::to_string(pid)).c_str(), F_OK) == 0) {
    ring_buffer__poll(ring, 100);
    report.tell_ended(monotonic_ns() - kLastBytesNs);
  }
  report.tell_ended(~0ull);
  report.say_lost(lost_events(object));
  const bool missing = !asked.request.empty() && !report.seen();
  if (missing)
    std::fprintf(
        stderr,
        "sluice trace: nothing of request '%s' was seen: no request of that X-Request-Id ran meanwhile\n",
        asked.request.c_str());
  ring_buffer__free(ring);
  bpf_object__close(object);
  return missing ? 1 : 0;
}
