// What `sluice tune` measures with: servers as child processes, the load client of `bench serve`, runs kept in
// a file, and the simulator fitted to the steps that a run recorded.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/server_process.h"
#include "sched/simulator/trace.h"
#include "tune/session.h"

namespace sluice::cli {

struct TuneLoad {
  int concurrency = 128, input_tokens = 512, output_tokens = 128, shared_prefix = 0;
  std::optional<Trace> trace;  // instead
  std::string trace_path;
  int vocabulary = 8000;
  uint64_t seed = 1;

  std::string describe() const;
  // `sluice bench serve …` with the same load; empty for a trace.
  std::string command() const;
};

class TuneRig : public tune::Rig {
 public:
  // `folder` exists.
  TuneRig(std::string folder, TuneLoad load, int port, std::vector<int> long_contexts,
          std::vector<tune::Slo> slo);

  tune::Run measure(const tune::Configuration& configuration, double seconds) override;
  std::vector<tune::LongContext> long_contexts(const tune::Configuration& configuration,
                                               double seconds) override;
  std::vector<tune::Variant> candidates(const tune::Run& best) override;
  double spent_s() const override;
  bool interrupted() const override;
  void say(const std::string& line) override;

  // Runs of earlier sessions in this folder; errors name the file.
  Status read_kept();
  const std::string& device() const { return device_; }

 private:
  Result<std::unique_ptr<ServerProcess>> start_server(const tune::Configuration& configuration);
  void drive(ServerProcess& server, double seconds, tune::Run& run);
  void ask_server(const std::string& url, double load_s, tune::Run& run);
  std::string steps_path(const tune::Configuration& configuration) const;
  void progress(const std::string& text);
  bool kept_run(const tune::Configuration& configuration, const std::string& load, tune::Run& out) const;

  const std::string folder_;
  const TuneLoad load_;
  const int port_;
  const std::vector<int> long_;
  const std::vector<tune::Slo> slo_;
  const TimeNs began_;
  const bool tty_;
  std::vector<tune::Run> kept_;
  std::string device_;
  uint64_t loads_ = 0;  // driven so far: each has prompts of its own
};

}  // namespace sluice::cli
