// Streams the step records of an engine to a file while it serves, off its hot path: a thread of its own looks
// at the ring now and then, and writes what is new. What the ring overwrote meanwhile is counted, and said in
// the file and in the log.
#pragma once

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "base/result.h"
#include "engine/step_record.h"

namespace sluice::cli {

class StepRecorder {
 public:
  // `ledger` outlives it. The file is replaced. Errors: it cannot be written.
  static Result<std::unique_ptr<StepRecorder>> start(const std::string& path, const std::string& header,
                                                     const StepLedger& ledger);
  // Writes what is left, and logs how much that was.
  ~StepRecorder();

 private:
  StepRecorder(std::FILE* file, std::string path, const StepLedger& ledger);
  void run();
  void write_new();

  std::FILE* file_;
  const std::string path_;
  const StepLedger& ledger_;
  int64_t last_step_ = 0, recorded_ = 0, dropped_ = 0;
  bool broken_ = false;
  std::string lines_;
  std::atomic<bool> quit_{false};
  std::thread thread_;
};

}  // namespace sluice::cli
