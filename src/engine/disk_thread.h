// The thread that keeps blocks of the cache in files (kv/block_file.h): one file a block, in a folder of its
// own for each model and layout, below the configured path. What it is asked for comes from HostTier.
//
// A disk that takes nothing, or gives nothing, is no reason to stop: the first failure is a warning, and until
// something succeeds again further ones are only counted. After a failed write the disk is left alone for
// kRestNs. Files are not synced: what a crash leaves half written does not pass its checksum. Folders of others
// give way at the start (disk_folders.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/meter.h"
#include "base/sha256.h"
#include "engine/bell.h"
#include "engine/disk_folders.h"
#include "kv/block_file.h"
#include "kv/host_tier.h"

namespace sluice {

struct DiskPlace {
  std::string path;   // empty: no files
  size_t bytes = 0;   // at most
  Sha256 identity{};  // of model, geometry and layout
};

class DiskThread final : public DiskQueue {
 public:
  // `host`: the memory that places are in, `unit_bytes` a quarter of a slot. `bell` is rung when a job is done.
  DiskThread(const DiskPlace& place, std::byte* host, size_t unit_bytes, Bell& bell);
  ~DiskThread();  // what was posted is done, but for what the disk takes longer than kLastNs over

  // What earlier runs left of the same identity, the oldest first; other files are left alone. Before the first
  // post.
  std::vector<BlockFileName> found() const;

  // Engine thread.
  bool post(const DiskJob& job) override;
  struct Finished {
    DiskJob job;
    DiskOutcome outcome = DiskOutcome::done;
    size_t bytes = 0;
    TimeNs took = 0;
  };
  bool finished(Finished& out);

  static constexpr TimeNs kRestNs = 10'000'000'000, kLastNs = 10'000'000'000;

 private:
  static constexpr size_t kMostJobs = 1024;

  void run();
  DiskOutcome work(const DiskJob& job);
  DiskOutcome write(const DiskJob& job);
  DiskOutcome read(const DiskJob& job);
  DiskOutcome fail(const char* what, const std::string& path, Counter& counter);
  DiskOutcome corrupt(const std::string& path, const std::string& why);
  void succeed(bool& failing, const char* what);
  std::string path_of(const DiskJob& job) const;
  std::span<std::byte> bytes_of(const DiskJob& job) const;

  const DiskPlace place_;
  const std::string folder_;
  const OpenFolder open_folder_;
  std::byte* const host_;
  const size_t unit_bytes_;
  Bell& bell_;
  Counter &write_errors_, &read_errors_, &corrupt_blocks_;
  SpscRing<DiskJob> jobs_{kMostJobs};
  SpscRing<Finished> finished_{kMostJobs};
  size_t outstanding_ = 0;  // engine thread
  Bell posted_;
  std::atomic<bool> quit_{false};

  // The thread's own.
  bool writes_fail_ = false, reads_fail_ = false, said_corrupt_ = false;
  TimeNs rests_until_ = 0;
  std::thread thread_;  // last
};

}  // namespace sluice
