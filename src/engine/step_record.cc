#include "engine/step_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace sluice {

std::string describe(const StepRecord& r) {
  const std::string batch =
      r.batch ? fmt::format(" batch of {} ({})", r.batch, flush_reason_name(r.flushed_by)) : "";
  const std::string cached = r.cached_tokens + r.resumed_tokens
                                 ? fmt::format(" {} tokens cached", r.cached_tokens + r.resumed_tokens)
                                 : "";
  const std::string padding = r.padding ? fmt::format(" + {} of padding", r.padding) : "";
  const std::string copies =
      r.to_device_ns + r.to_host_ns > 0
          ? fmt::format(" (to device {:.3f} to host {:.3f})", ms(r.to_device_ns), ms(r.to_host_ns))
          : "";
  return fmt::format(
      "step {}: {} tokens{} of {} sequences ({} with one, longest context {}), {} logit rows, graph {} | plan "
      "{:.3f} build {:.3f} launch {:.3f} execute {:.3f}{} commit {:.3f} idle {:.3f} gap {:.3f} ms | running {} "
      "waiting {} blocks {}/{} | admitted {} (stopped by {}){}{} preempted {} held back {} paused {} ended {}",
      r.step, r.tokens, padding, r.sequences, r.one_token_sequences, r.longest_context, r.logit_rows,
      graph_use_name(r.graph), ms(r.plan_ns), ms(r.build_ns), ms(r.launch_ns), ms(r.execute_ns), copies,
      ms(r.commit_ns), ms(r.idle_ns), ms(r.gap_ns), r.running, r.waiting, r.blocks_used, r.blocks_total,
      r.admitted, admission_stop_name(r.stopped_by), cached, batch, r.preempted, r.held_back, r.paused,
      r.ended);
}

StepLedger::StepLedger() : cells_(new Cell[kCapacity]) {}

// Words are released and acquired one by one: on x86 that costs nothing, and no fence is needed that a race
// detector would not understand.
void StepLedger::write(const StepRecord& record) {
  const uint64_t index = written_.load(std::memory_order_relaxed);
  Cell& cell = cells_[index % kCapacity];
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), &record, sizeof record);
  cell.turn.store(2 * index + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) cell.words[i].store(words[i], std::memory_order_release);
  cell.turn.store(2 * index + 2, std::memory_order_release);
  written_.store(index + 1, std::memory_order_release);
}

bool StepLedger::read(uint64_t index, StepRecord& out) const {
  const Cell& cell = cells_[index % kCapacity];
  if (cell.turn.load(std::memory_order_acquire) != 2 * index + 2) return false;
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = cell.words[i].load(std::memory_order_acquire);
  if (cell.turn.load(std::memory_order_relaxed) != 2 * index + 2) return false;
  std::memcpy(static_cast<void*>(&out), words.data(), sizeof out);
  return true;
}

// Steps are numbered from 1 and end in order, so the number is the place.
std::vector<StepRecord> StepLedger::between(int64_t first, int64_t last) const {
  const uint64_t end = std::min(written(), uint64_t(std::max<int64_t>(0, last)));
  std::vector<StepRecord> out;
  for (uint64_t i = uint64_t(std::max<int64_t>(1, first)) - 1; i < end; ++i) {
    StepRecord record;
    if (read(i, record) && record.step == int64_t(i) + 1) out.push_back(record);
  }
  return out;
}

std::vector<StepRecord> StepLedger::last(size_t count) const {
  const uint64_t end = written();
  const uint64_t begin = end - std::min<uint64_t>({end, count, kCapacity});
  std::vector<StepRecord> out;
  for (uint64_t i = begin; i < end; ++i) {
    StepRecord record;
    if (read(i, record)) out.push_back(record);
  }
  return out;
}

}  // namespace sluice
