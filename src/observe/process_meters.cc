#include "observe/process_meters.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "base/meter.h"

namespace sluice {

namespace {

double resident_bytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long total = 0, resident = 0;
  const bool read = std::fscanf(file, "%ld %ld", &total, &resident) == 2;
  std::fclose(file);
  return read ? double(resident) * double(sysconf(_SC_PAGESIZE)) : 0;
}

double open_files() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  int count = -3;  // ".", ".." and the one just opened
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds_of = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

}  // namespace

void update_process_meters() {
  static Gauge& resident = meter::gauge("process_resident_memory_bytes", "Resident memory.");
  static Gauge& files = meter::gauge("process_open_fds", "Open file descriptors.");
  static Gauge& cpu = meter::gauge("process_cpu_usage_seconds", "User and system CPU time spent.");
  static Gauge& start = meter::gauge("process_start_time_seconds", "Unix time of the first scrape or start.");
  static const double started = double(std::time(nullptr));
  resident.set(resident_bytes());
  files.set(open_files());
  cpu.set(cpu_seconds());
  start.set(started);
}

}  // namespace sluice
