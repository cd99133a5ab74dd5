#include "engine/disk_thread.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/faults.h"
#include "base/log.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

Counter& errors(const char* kind) {
  return meter::counter("sluice_kv_disk_errors_total",
                        "Blocks of the disk tier that could not be written or read, or were corrupt.",
                        fmt::format("kind=\"{}\"", kind));
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool open() const { return fd_ >= 0; }

  // All of both, one behind the other.
  template <auto Call>
  bool transfer(std::span<std::byte> first, std::span<std::byte> second) {
    while (!first.empty() || !second.empty()) {
      const iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
      const ssize_t n = Call(fd_, parts, 2);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      const size_t of_first = std::min(first.size(), size_t(n));
      first = first.subspan(of_first);
      second = second.subspan(size_t(n) - of_first);
    }
    return true;
  }
  // Errors that were held back show here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

}  // namespace

DiskThread::DiskThread(const DiskPlace& place, std::byte* host, size_t unit_bytes, Bell& bell)
    : place_(place),
      folder_(place.path + "/" + disk_folder_name(place.identity)),
      open_folder_(folder_),
      host_(host),
      unit_bytes_(unit_bytes),
      bell_(bell),
      write_errors_(errors("write")),
      read_errors_(errors("read")),
      corrupt_blocks_(errors("corrupt")) {
  thread_ = std::thread([this] { run(); });
}

DiskThread::~DiskThread() {
  quit_.store(true);
  posted_.ring();
  thread_.join();
}

std::vector<BlockFileName> DiskThread::found() const {
  std::vector<std::pair<fs::file_time_type, BlockFileName>> files;
  int cut = 0;
  std::error_code error;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const auto parsed = parse_block_file_name(name);
    std::error_code gone;
    if (!parsed) {
      if (name.ends_with(kUnfinishedBlock) &&
          parse_block_file_name(name.substr(0, name.size() - std::strlen(kUnfinishedBlock))))
        fs::remove(at->path(), gone);
      continue;
    }
    const size_t wanted = kBlockHeaderBytes + unit_bytes_ * size_t(kv_units(parsed->tier));
    const auto written = at->last_write_time(gone);
    if (gone || !at->is_regular_file(gone) || gone) continue;
    if (at->file_size(gone) == wanted && !gone) {
      files.emplace_back(written, *parsed);
    } else if (!gone && fs::remove(at->path(), gone)) {
      ++cut;
      corrupt_blocks_.add();
    }
  }
  if (cut > 0) LOG(warn, "kv.disk_path: {} blocks of a wrong size were deleted; they are computed again", cut);
  std::stable_sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<BlockFileName> names;
  for (const auto& [time, name] : files) names.push_back(name);
  return names;
}

bool DiskThread::post(const DiskJob& job) {
  if (outstanding_ == kMostJobs) return false;
  CHECK(jobs_.push(job));
  ++outstanding_;
  posted_.ring();
  return true;
}

bool DiskThread::finished(Finished& out) {
  if (!finished_.pop(out)) return false;
  --outstanding_;
  return true;
}

void DiskThread::run() {
  pthread_setname_np(pthread_self(), "sluice-kv-disk");
  if (const int removed = remove_old_folders(place_.path, disk_folder_name(place_.identity), place_.bytes))
    LOG(info, "kv.disk_path {}: {} folder{} of other models or layouts gave way", place_.path, removed,
        removed == 1 ? "" : "s");
  TimeNs last = 0;
  for (;;) {
    const uint32_t heard = posted_.count();
    DiskJob job;
    if (!jobs_.pop(job)) {
      if (quit_.load()) return;
      posted_.wait(heard);
      continue;
    }
    const TimeNs began = now_ns();
    if (quit_.load() && last == 0) last = began + kLastNs;
    if (last && began > last) {
      LOG(warn, "kv.disk_path: the disk is slow; {} blocks were not written", jobs_.size() + 1);
      return;
    }
    Finished done{.job = job};
    done.outcome = work(job);
    done.took = now_ns() - began;
    done.bytes = job.kind == DiskJob::Kind::remove ? 0 : bytes_of(job).size();
    CHECK(finished_.push(done));
    bell_.ring();
  }
}

DiskOutcome DiskThread::work(const DiskJob& job) {
  if (faults::armed()) [[unlikely]]
    if (const auto slow = faults::met(Fault::slow_disk))
      std::this_thread::sleep_for(std::chrono::milliseconds(*slow));
  if (job.kind == DiskJob::Kind::write) return write(job);
  if (job.kind == DiskJob::Kind::read) return read(job);
  ::unlink(path_of(job).c_str());  // a file that stays is counted again at the next start
  return DiskOutcome::done;
}

DiskOutcome DiskThread::write(const DiskJob& job) {
  if (now_ns() < rests_until_) {
    write_errors_.add();
    return DiskOutcome::failed;
  }
  const auto bytes = bytes_of(job);
  auto header =
      encode({job.tier, uint32_t(job.group), place_.identity, job.key, bytes.size(), block_checksum(bytes)});
  const std::string path = path_of(job), unfinished = path + kUnfinishedBlock;
  File file(unfinished, O_WRONLY | O_CREAT | O_EXCL);
  // Another engine on this path writes the same block: it will be there.
  if (!file.open() && errno == EEXIST) return DiskOutcome::failed;
  const bool full = faults::armed() && faults::met(Fault::disk_full);
  if (full) errno = ENOSPC;
  if (full || !file.open() || !file.transfer<::writev>(header, bytes) || !file.close() ||
      ::rename(unfinished.c_str(), path.c_str()) != 0) {
    const int why = errno;
    ::unlink(unfinished.c_str());
    errno = why;
    rests_until_ = now_ns() + kRestNs;
    return std::exchange(writes_fail_, true) ? (write_errors_.add(), DiskOutcome::failed)
                                             : fail("write", unfinished, write_errors_);
  }
  succeed(writes_fail_, "written");
  return DiskOutcome::done;
}

DiskOutcome DiskThread::read(const DiskJob& job) {
  const std::string path = path_of(job);
  std::array<std::byte, kBlockHeaderBytes> header;
  const auto bytes = bytes_of(job);
  File file(path, O_RDONLY);
  // Another server on this path may have made room.
  if (!file.open() && errno == ENOENT) return DiskOutcome::failed;
  if (!file.open())
    return std::exchange(reads_fail_, true) ? (read_errors_.add(), DiskOutcome::failed)
                                            : fail("read", path, read_errors_);
  errno = 0;
  if (!file.transfer<::readv>(header, bytes)) {
    if (errno == 0) return corrupt(path, "it ends too early");
    return std::exchange(reads_fail_, true) ? (read_errors_.add(), DiskOutcome::failed)
                                            : fail("read", path, read_errors_);
  }
  succeed(reads_fail_, "read");
  const auto says = decode_block_header(header);
  if (!says) return corrupt(path, says.error().message);
  const BlockHeader wanted{job.tier, uint32_t(job.group), place_.identity,
                           job.key,  bytes.size(),        says->checksum};
  if (*says != wanted) return corrupt(path, "it is another block");
  if (block_checksum(bytes) != says->checksum) return corrupt(path, "its checksum differs");
  return DiskOutcome::done;
}

DiskOutcome DiskThread::fail(const char* what, const std::string& path, Counter& counter) {
  LOG(warn, "kv.disk_path: cannot {} {}: {}; serving goes on without, and sluice_kv_disk_errors_total counts",
      what, path, std::strerror(errno));
  counter.add();
  return DiskOutcome::failed;
}

DiskOutcome DiskThread::corrupt(const std::string& path, const std::string& why) {
  corrupt_blocks_.add();
  if (!std::exchange(said_corrupt_, true))
    LOG(warn, "kv.disk_path: {} is of no use: {}; it is computed again, and sluice_kv_disk_errors_total counts",
        path, why);
  return DiskOutcome::corrupt;
}

void DiskThread::succeed(bool& failing, const char* what) {
  if (std::exchange(failing, false)) LOG(info, "kv.disk_path: blocks can be {} again", what);
}

std::string DiskThread::path_of(const DiskJob& job) const {
  return folder_ + "/" + block_file_name(job.key, job.group, job.tier);
}

std::span<std::byte> DiskThread::bytes_of(const DiskJob& job) const {
  return {host_ + size_t(kv_first_unit(job.place)) * unit_bytes_, unit_bytes_ * size_t(kv_units(job.tier))};
}

}  // namespace sluice
