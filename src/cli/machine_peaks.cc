#include "cli/machine_peaks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "base/log.h"
#include "cli/json_number.h"
#include "cli/machine.h"
#include "observe/host_state.h"
#include "server/json.h"
#include "server/json_writer.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kUndisturbed = 0.7;  // of the cores' time, at least
// That others read memory meanwhile, in this machine or in one beside it, shows in no counter: a fifth of the
// real rate has been measured so, and every load looked bound by memory from then on.
constexpr int kMeasurements = 3;

fs::path cache_folder() {
  if (const char* named = std::getenv("XDG_CACHE_HOME"); named != nullptr && *named == '/')
    return fs::path(named) / "sluice";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "sluice";
  return {};
}

}  // namespace

KeptPeaks kept_peaks(const std::string& file, const std::string& machine) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  const std::string json = text.str();
  const auto document = JsonDocument::parse(json);
  if (!document) return {};
  const auto named = document->root().find("machine");
  if (!named || named->string() != machine) return {};
  return {{number_of(document->root(), "read_bytes_s"), number_of(document->root(), "int8_ops_s")},
          int(number_of(document->root(), "measurements"))};
}

bool keep_peaks(const std::string& file, const std::string& machine, const LivePeaks& measured) {
  const KeptPeaks known = kept_peaks(file, machine);
  const LivePeaks best{std::max(known.best.bytes_s, measured.bytes_s),
                       std::max(known.best.flops_s, measured.flops_s)};
  std::string json;
  JsonWriter w(json);
  w.begin_object().key("machine").string(machine);
  w.key("read_bytes_s").number(best.bytes_s).key("int8_ops_s").number(best.flops_s);
  w.key("measurements").integer(known.measurements + 1).end_object();
  const fs::path partial =
      file + fmt::format(".{}", getpid());  // whole or not at all: others may read meanwhile
  std::error_code failed;
  {
    std::ofstream out(partial);
    if (!(out << json << "\n")) return false;
  }
  fs::rename(partial, file, failed);
  return !failed;
}

LivePeaks measured_peaks(int threads) {
  const MachineLimits limits = measure_machine(threads);
  return {limits.read_bytes_s, limits.int8_ops_s};
}

LivePeaks cached_peaks(int threads) {
  const fs::path folder = cache_folder();
  std::error_code failed;
  if (folder.empty() || (fs::create_directories(folder, failed), failed)) return {};
  const std::string machine = fmt::format("{}, {} threads", processor_name(), threads);
  const std::string file = folder / "peaks.json";
  const KeptPeaks known = kept_peaks(file, machine);
  if (known.measurements >= kMeasurements) return known.best;
  const HostState before = read_host_state();
  // On a busy machine it would take long and tell little.
  if (access(folder.c_str(), W_OK) != 0 || before.load > 0.5 * before.usable_cpus) return known.best;
  const TimeNs begin = now_ns();
  const LivePeaks peaks = measured_peaks(threads);
  const double wall = seconds(now_ns() - begin), ran = read_host_state().cpu_s - before.cpu_s;
  // The team spins or works all the time, so what it did not run others took.
  const bool disturbed = ran < kUndisturbed * wall * threads;
  const bool kept = !disturbed && keep_peaks(file, machine, peaks);
  LOG(info, "measured what this machine can do: {:.1f} GB/s, {:.0f} G int8 operations/s{}",
      peaks.bytes_s * 1e-9, peaks.flops_s * 1e-9,
      kept        ? "; the best of so far is kept in " + file
      : disturbed ? ", while others used it too"
                  : "");
  return kept ? kept_peaks(file, machine).best : disturbed ? known.best : peaks;
}

}  // namespace sluice::cli
