#include "kv/host_tier.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace sluice {

HostTier::HostTier(const HostTierShape& shape, DiskQueue* disk)
    : slot_bytes_(shape.slot_bytes),
      most_disk_bytes_(shape.disk_bytes),
      disk_queue_(disk),
      placement_(shape.slots) {
  CHECK(shape.slot_bytes % kSlotUnits == 0);
  const size_t most = size_t(shape.slots) * kSlotUnits + size_t(disk ? shape.disk_blocks : 0);
  entries_.resize(most);
  spare_.reserve(most);
  for (int e = int(most); e-- > 0;) spare_.push_back(e);
  table_.resize(std::bit_ceil(2 * most + 1), -1);
}

size_t HostTier::home(const BlockKey& key, int group) const {
  return size_t(key[0] ^ uint64_t(group) * 0x9e3779b97f4a7c15ull) & (table_.size() - 1);
}

int HostTier::find(const BlockKey& key, int group) const {
  for (size_t at = home(key, group);; at = (at + 1) & (table_.size() - 1)) {
    const int e = table_[at];
    if (e < 0) return -1;
    const Entry& entry = entries_[size_t(e)];
    if (entry.key == key && entry.group == group) return entry.host == Fill::ready || entry.in_file ? e : -1;
  }
}

HostTier::Where HostTier::where(int e) const {
  const Entry& entry = entries_[size_t(e)];
  if (entry.host == Fill::ready) return Where::host;
  if (entry.reading) return Where::coming;
  return entry.in_file ? Where::disk : Where::nowhere;
}

int HostTier::make(const BlockKey& key, int group, KvTier tier) {
  if (spare_.empty()) return -1;
  const int e = spare_.back();
  spare_.pop_back();
  entries_[size_t(e)] = {.key = key, .group = group, .tier = tier, .live = true};
  size_t at = home(key, group);
  while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
  table_[at] = e;
  return e;
}

// Without tombstones: what stands behind the gap and would be looked for in it moves up.
void HostTier::drop_if_nowhere(int e) {
  Entry& entry = entries_[size_t(e)];
  if (!entry.live || entry.host != Fill::none || entry.in_file || entry.holders > 0 || entry.writing) return;
  const size_t mask = table_.size() - 1;
  size_t gap = home(entry.key, entry.group);
  while (table_[gap] != e) gap = (gap + 1) & mask;
  for (size_t at = (gap + 1) & mask; table_[at] >= 0; at = (at + 1) & mask) {
    const Entry& other = entries_[size_t(table_[at])];
    if (((at - home(other.key, other.group)) & mask) < ((at - gap) & mask)) continue;
    table_[gap] = table_[at];
    gap = at;
  }
  table_[gap] = -1;
  entry.live = false;
  spare_.push_back(e);
}

// Of what nobody needs just now, the oldest. False: there is none.
bool HostTier::give_way() {
  for (int e = host_.first; e >= 0; e = entries_[size_t(e)].host_links.after) {
    const Entry& entry = entries_[size_t(e)];
    if (entry.holders > 0 || entry.writing) continue;
    evicted_ += !entry.in_file;
    leave_host(e);
    return true;
  }
  return false;
}

KvRef HostTier::take_place(KvTier tier) {
  for (;;) {
    const KvRef place = placement_.take(tier);
    if (place != kNoKvRef || !give_way()) return place;
  }
}

void HostTier::leave_host(int e) {
  Entry& entry = entries_[size_t(e)];
  if (entry.host == Fill::ready) remove(host_, &Entry::host_links, e);
  placement_.drop(std::exchange(entry.place, kNoKvRef));
  entry.host = Fill::none;
  drop_if_nowhere(e);
}

void HostTier::leave_disk(int e) {
  Entry& entry = entries_[size_t(e)];
  remove(disk_, &Entry::disk_links, e);
  disk_used_ -= bytes(e);
  entry.in_file = false;
  drop_if_nowhere(e);
}

int HostTier::reserve(const BlockKey& key, int group, KvTier tier) {
  for (size_t at = home(key, group); table_[at] >= 0; at = (at + 1) & (table_.size() - 1)) {
    const Entry& entry = entries_[size_t(table_[at])];
    if (entry.key == key && entry.group == group) return -1;  // it is being filled, or about to go
  }
  const KvRef place = take_place(tier);
  if (place == kNoKvRef) return -1;
  const int e = make(key, group, tier);
  if (e < 0) {
    placement_.drop(place);
    return -1;
  }
  entries_[size_t(e)].place = place;
  entries_[size_t(e)].host = Fill::filling;
  return e;
}

void HostTier::filled(int e) {
  Entry& entry = entries_[size_t(e)];
  CHECK(entry.host == Fill::filling);
  entry.host = Fill::ready;
  append(host_, &Entry::host_links, e);
  if (disk_queue_ && !entry.in_file) write_to_file(e);
}

// What cannot be written now is on the host alone, and goes with it.
void HostTier::write_to_file(int e) {
  Entry& entry = entries_[size_t(e)];
  for (int old = disk_.first; old >= 0 && disk_used_ + bytes(e) > most_disk_bytes_;) {
    const int next = entries_[size_t(old)].disk_links.after;
    const Entry& other = entries_[size_t(old)];
    if (other.holders == 0 && !other.reading) {
      if (!disk_queue_->post(
              {.kind = DiskJob::Kind::remove, .key = other.key, .group = other.group, .tier = other.tier}))
        return;
      evicted_ += other.host == Fill::none;
      leave_disk(old);
    }
    old = next;
  }
  if (disk_used_ + bytes(e) > most_disk_bytes_) return;
  if (!disk_queue_->post({DiskJob::Kind::write, e, entry.key, entry.group, entry.tier, entry.place})) return;
  entry.writing = true;
  disk_used_ += bytes(e);
}

void HostTier::release(int e) {
  Entry& entry = entries_[size_t(e)];
  CHECK(entry.holders > 0);
  --entry.holders;
  drop_if_nowhere(e);
}

void HostTier::touch(int e) {
  const Entry& entry = entries_[size_t(e)];
  if (entry.host == Fill::ready) remove(host_, &Entry::host_links, e), append(host_, &Entry::host_links, e);
  if (entry.in_file) remove(disk_, &Entry::disk_links, e), append(disk_, &Entry::disk_links, e);
}

bool HostTier::fetch(int e) {
  Entry& entry = entries_[size_t(e)];
  CHECK(entry.holders > 0 && entry.in_file && entry.host == Fill::none && !entry.reading);
  const KvRef place = take_place(entry.tier);
  if (place == kNoKvRef) return false;
  if (!disk_queue_->post({DiskJob::Kind::read, e, entry.key, entry.group, entry.tier, place})) {
    placement_.drop(place);
    return false;
  }
  entry.place = place;
  entry.host = Fill::filling;
  entry.reading = true;
  return true;
}

bool HostTier::add_file(const BlockKey& key, int group, KvTier tier) {
  const size_t size = slot_bytes_ / kSlotUnits * size_t(kv_units(tier));
  if (find(key, group) >= 0 || disk_used_ + size > most_disk_bytes_) return false;
  const int e = make(key, group, tier);
  if (e < 0) return false;
  entries_[size_t(e)].in_file = true;
  append(disk_, &Entry::disk_links, e);
  disk_used_ += size;
  return true;
}

void HostTier::finish(const DiskJob& job, DiskOutcome outcome) {
  if (job.kind == DiskJob::Kind::remove) return;
  Entry& entry = entries_[size_t(job.entry)];
  if (job.kind == DiskJob::Kind::write) {
    CHECK(entry.writing && entry.key == job.key && entry.group == job.group);
    entry.writing = false;
    if (outcome == DiskOutcome::done) {
      entry.in_file = true;
      append(disk_, &Entry::disk_links, job.entry);
    } else {
      disk_used_ -= bytes(job.entry);
    }
    return;
  }
  CHECK(entry.reading && entry.key == job.key && entry.group == job.group);
  entry.reading = false;
  if (outcome == DiskOutcome::done) return filled(job.entry);
  leave_host(job.entry);
  // Whoever waits for it sees that it is nowhere. The file is of no use.
  if (disk_queue_->post(
          {.kind = DiskJob::Kind::remove, .key = job.key, .group = job.group, .tier = job.tier})) {
  }
  leave_disk(job.entry);
}

void HostTier::append(List& list, Links Entry::*links, int e) {
  (entries_[size_t(e)].*links) = {list.last, -1};
  (list.last < 0 ? list.first : (entries_[size_t(list.last)].*links).after) = e;
  list.last = e;
  ++list.size;
}

void HostTier::remove(List& list, Links Entry::*links, int e) {
  const Links at = entries_[size_t(e)].*links;
  (at.before < 0 ? list.first : (entries_[size_t(at.before)].*links).after) = at.after;
  (at.after < 0 ? list.last : (entries_[size_t(at.after)].*links).before) = at.before;
  --list.size;
}

void HostTier::check() const {
  int ready = 0, files = 0, units = 0, live = 0;
  size_t disk = 0;
  for (int e = 0; e < int(entries_.size()); ++e) {
    const Entry& entry = entries_[size_t(e)];
    if (!entry.live) continue;
    ++live;
    ready += entry.host == Fill::ready;
    files += entry.in_file;
    if (entry.in_file || entry.writing) disk += bytes(e);
    CHECK((entry.place != kNoKvRef) == (entry.host != Fill::none));
    if (entry.place != kNoKvRef) units += kv_units(kv_tier(entry.place));
    CHECK(entry.host != Fill::none || entry.in_file || entry.holders > 0, "an entry without purpose");
    CHECK(entry.host != Fill::none || !entry.writing);
    if (entry.host == Fill::ready || entry.in_file) CHECK(find(entry.key, entry.group) == e, "not found");
  }
  CHECK(ready == host_.size && files == disk_.size && units == placement_.used_units());
  CHECK(disk == disk_used_ && disk <= most_disk_bytes_);
  CHECK(live + int(spare_.size()) == int(entries_.size()));
}

}  // namespace sluice
