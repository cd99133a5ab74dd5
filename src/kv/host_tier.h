// Blocks whose content lies in host memory, or in files, besides or instead of the pool: what the prefix cache
// would lose when the pool needs the room. Found by name (block_key.h) and layer group. Accounting only: the
// bytes are moved by the device (copies of a step's plan) and by a thread that reads and writes files, which
// report here when they are done.
//
// An entry is one block of one group. Host memory is cut as the pool is, in slots that hold one block in full
// precision, two or four in smaller ones: a block keeps its tier. It gives way when room is needed, the one
// that was not used for the longest first, unless somebody is reading or filling it; what is also in a file is
// found there then. Files give way in the same order among themselves.
//
// Owned by the engine thread. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/block_key.h"
#include "kv/placement.h"

namespace sluice {

// What the thread of the files is asked to do with an entry.
struct DiskJob {
  enum class Kind : uint8_t { write, read, remove };
  Kind kind = Kind::write;
  int entry = -1;
  BlockKey key{};
  int group = 0;
  KvTier tier = KvTier::full;
  KvRef place = kNoKvRef;  // in host memory: what is written, or read to
};

enum class DiskOutcome : uint8_t { done, failed, corrupt };

class DiskQueue {
 public:
  // False: it is full; nothing happened.
  virtual bool post(const DiskJob& job) = 0;

 protected:
  ~DiskQueue() = default;
};

struct HostTierShape {
  int slots = 0;  // of host memory
  size_t slot_bytes = 0;
  size_t disk_bytes = 0;  // of files, at most; 0: none
  int disk_blocks = 0;    // that the files are counted by, at most
};

class HostTier {
 public:
  explicit HostTier(const HostTierShape& shape, DiskQueue* disk = nullptr);

  enum class Where : uint8_t { nowhere, host, disk, coming };

  // The entry of a block whose content is here or comes from a file; -1: there is none.
  int find(const BlockKey& key, int group) const;
  Where where(int entry) const;
  KvTier tier(int entry) const { return entries_[size_t(entry)].tier; }
  KvRef place(int entry) const { return entries_[size_t(entry)].place; }
  size_t bytes(int entry) const { return slot_bytes_ / kSlotUnits * size_t(kv_units(tier(entry))); }

  // An entry for a block that is not here, with a place to be filled. -1: everything is in use.
  int reserve(const BlockKey& key, int group, KvTier tier);
  // It now has its content; it goes to a file as well where there are files.
  void filled(int entry);
  // What is held keeps its place, or, if it is in a file only, stays there.
  void hold(int entry) { ++entries_[size_t(entry)].holders; }
  void release(int entry);
  void touch(int entry);
  // Begins to read a held entry from its file. False: no place, or too much is asked already; try again.
  bool fetch(int entry);

  // What a start finds in files, the oldest first. False: no more fit.
  bool add_file(const BlockKey& key, int group, KvTier tier);
  // What became of a job.
  void finish(const DiskJob& job, DiskOutcome outcome);

  int blocks_on_host() const { return host_.size; }
  int blocks_on_disk() const { return disk_.size; }
  size_t host_bytes() const { return size_t(placement_.used_units()) * (slot_bytes_ / kSlotUnits); }
  size_t disk_bytes() const { return disk_used_; }
  uint64_t evicted() const { return evicted_; }  // that were in no file
  // CHECKs what must hold, in O(entries): for tests.
  void check() const;

 private:
  enum class Fill : uint8_t { none, filling, ready };  // filling: from the device, or from a file
  struct Links {
    int before = -1, after = -1;
  };
  struct Entry {
    BlockKey key{};
    int group = 0;
    KvTier tier = KvTier::full;
    Fill host = Fill::none;
    bool in_file = false;
    bool writing = false, reading = false;
    int holders = 0;  // restores that need it
    KvRef place = kNoKvRef;
    Links host_links{}, disk_links{};
    bool live = false;
  };
  // The one used last is at the end.
  struct List {
    int first = -1, last = -1, size = 0;
  };
  void append(List& list, Links Entry::*links, int entry);
  void remove(List& list, Links Entry::*links, int entry);
  size_t home(const BlockKey& key, int group) const;
  int make(const BlockKey& key, int group, KvTier tier);
  void drop_if_nowhere(int entry);
  bool give_way();
  KvRef take_place(KvTier tier);
  void leave_host(int entry);
  void leave_disk(int entry);
  void write_to_file(int entry);

  const size_t slot_bytes_, most_disk_bytes_;
  DiskQueue* const disk_queue_;
  Placement placement_;
  std::vector<Entry> entries_;
  std::vector<int> spare_;
  std::vector<int> table_;  // open addressing by key, linear probing; -1: empty
  List host_, disk_;        // ready on the host; in a file
  size_t disk_used_ = 0;
  uint64_t evicted_ = 0;
};

}  // namespace sluice
