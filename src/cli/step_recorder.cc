#include "cli/step_recorder.h"

#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/log.h"
#include "cli/recorded_steps.h"

namespace sluice::cli {
namespace {

// The ring holds 1,024 steps, so steps of 50 µs and more are never missed.
constexpr auto kBetweenLooks = std::chrono::milliseconds(50);

}  // namespace

Result<std::unique_ptr<StepRecorder>> StepRecorder::start(const std::string& path, const std::string& header,
                                                          const StepLedger& ledger) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (!file || std::fputs(header.c_str(), file) < 0 || std::fflush(file) != 0) {
    const Error error{ErrorCode::kIo, fmt::format("--record-steps: {}: {}", path, std::strerror(errno))};
    if (file) std::fclose(file);
    return error;
  }
  return std::unique_ptr<StepRecorder>(new StepRecorder(file, path, ledger));
}

StepRecorder::StepRecorder(std::FILE* file, std::string path, const StepLedger& ledger)
    : file_(file), path_(std::move(path)), ledger_(ledger), thread_([this] { run(); }) {}

StepRecorder::~StepRecorder() {
  quit_.store(true);
  thread_.join();
  write_new();
  if (std::fclose(file_) != 0) broken_ = true;
  if (broken_)
    LOG(error, "{}: not everything could be written", path_);
  else
    LOG(info, "{} steps recorded in {}, {} dropped", recorded_, path_, dropped_);
}

void StepRecorder::run() {
  pthread_setname_np(pthread_self(), "sluice-recorder");
  while (!quit_.load()) {
    write_new();
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

void StepRecorder::write_new() {
  lines_.clear();
  for (const StepRecord& record : ledger_.last(StepLedger::kCapacity)) {
    if (record.step <= last_step_) continue;
    if (const int64_t missing = record.step - last_step_ - 1; missing > 0) {
      lines_ += recorded_gap(missing);
      dropped_ += missing;
    }
    append_recorded_step(lines_, record);
    last_step_ = record.step;
    ++recorded_;
  }
  if (lines_.empty() || broken_) return;
  broken_ = std::fwrite(lines_.data(), 1, lines_.size(), file_) != lines_.size() || std::fflush(file_) != 0;
  if (broken_) LOG(error, "{}: {}; no more steps are recorded", path_, std::strerror(errno));
}

}  // namespace sluice::cli
