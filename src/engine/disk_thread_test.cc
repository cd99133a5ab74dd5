#include "engine/disk_thread.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;
constexpr size_t kUnit = 64;

class DiskThreadTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::path(testing::TempDir()) / "disk_thread_test").string();
    fs::remove_all(folder_);
    for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = std::byte(i * 13);
  }
  std::unique_ptr<DiskThread> start(uint8_t identity = 1) {
    DiskPlace place{.path = folder_, .bytes = 1 << 20};
    place.identity[0] = identity;
    return std::make_unique<DiskThread>(place, memory_.data(), kUnit, bell_);
  }
  DiskOutcome run(DiskThread& disk, const DiskJob& job) {
    EXPECT_TRUE(disk.post(job));
    for (;;) {
      const uint32_t heard = bell_.count();
      if (DiskThread::Finished done; disk.finished(done)) return done.outcome;
      bell_.wait(heard);
    }
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& file : fs::recursive_directory_iterator(folder_))
      if (file.is_regular_file()) found.push_back(file.path());
    return found;
  }
  static DiskJob job(DiskJob::Kind kind, KvRef place) {
    return {.kind = kind, .key = {1, 2}, .group = 3, .tier = KvTier::int8, .place = place};
  }

  std::string folder_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kUnit * 16);
  Bell bell_;
};

using Kind = DiskJob::Kind;
const KvRef kFrom = kv_ref(KvTier::int8, 1), kTo = kv_ref(KvTier::int8, 4);

TEST_F(DiskThreadTest, ReadsWhatItWroteAlsoAfterARestart) {
  {
    auto disk = start();
    EXPECT_TRUE(disk->found().empty());
    EXPECT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done);
  }
  auto disk = start();
  const auto found = disk->found();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, (BlockKey{1, 2}));
  EXPECT_EQ(found[0].group, 3);
  EXPECT_EQ(found[0].tier, KvTier::int8);
  const auto at = [&](KvRef place) {
    return memory_.begin() + ptrdiff_t(size_t(kv_first_unit(place)) * kUnit);
  };
  EXPECT_FALSE(std::equal(at(kFrom), at(kFrom) + 2 * kUnit, at(kTo)));
  EXPECT_EQ(run(*disk, job(Kind::read, kTo)), DiskOutcome::done);
  EXPECT_TRUE(std::equal(at(kFrom), at(kFrom) + 2 * kUnit, at(kTo)));
  EXPECT_EQ(run(*disk, job(Kind::remove, kNoKvRef)), DiskOutcome::done);
  EXPECT_TRUE(files().empty());
  EXPECT_EQ(run(*disk, job(Kind::read, kTo)), DiskOutcome::failed);
}

TEST_F(DiskThreadTest, WhatIsCutShortOrChangedIsCorrupt) {
  auto disk = start();
  ASSERT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done);
  const fs::path file = files().at(0);
  const auto size = fs::file_size(file);
  {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(std::streamoff(size) - 1);
    f.put('\x55');
  }
  EXPECT_EQ(run(*disk, job(Kind::read, kTo)), DiskOutcome::corrupt);
  fs::resize_file(file, size - 1);
  EXPECT_EQ(run(*disk, job(Kind::read, kTo)), DiskOutcome::corrupt);
  EXPECT_TRUE(start()->found().empty());
  EXPECT_TRUE(files().empty()) << "what is cut short takes no room after a start";
}

// Two engines of one model may have one path: each block is one's to write.
TEST_F(DiskThreadTest, ABlockThatAnotherOneWritesIsLeftToIt) {
  auto disk = start();
  ASSERT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done);
  const fs::path file = files().at(0), unfinished = file.string() + ".new";
  fs::rename(file, unfinished);
  EXPECT_EQ(run(*disk, job(Kind::write, kTo)), DiskOutcome::failed);
  EXPECT_EQ(files(), std::vector{unfinished});
  fs::remove(unfinished);
  EXPECT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done) << "the disk is not left alone for it";
}

TEST_F(DiskThreadTest, AnotherIdentityHasAFolderOfItsOwnAndABlockUnderAWrongNameIsNotTaken) {
  auto disk = start(1);
  ASSERT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done);
  const fs::path mine = files().at(0);
  auto other = start(2);
  EXPECT_TRUE(other->found().empty());
  ASSERT_EQ(run(*other, job(Kind::write, kFrom)), DiskOutcome::done);
  for (const fs::path& file : files())
    if (file != mine) fs::copy_file(mine, file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(run(*other, job(Kind::read, kTo)), DiskOutcome::corrupt);
}

TEST_F(DiskThreadTest, FoldersOfOthersGiveWayTheLongestUnusedFirst) {
  for (const uint8_t identity : {1, 2, 3}) {
    auto disk = start(identity);
    ASSERT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::done);
  }
  const auto folder = [&](uint8_t identity) {
    return fs::path(folder_) / fmt::format("{:02x}0000000000", identity);
  };
  const auto now = fs::last_write_time(folder(1));
  fs::last_write_time(folder(1), now - std::chrono::hours(1));
  fs::last_write_time(folder(2), now - std::chrono::hours(3));
  fs::last_write_time(folder(3), now - std::chrono::hours(2));
  const size_t one = fs::file_size(files().at(0));

  EXPECT_EQ(remove_old_folders(folder_, "none", 3 * one), 0) << "all fit";
  EXPECT_EQ(remove_old_folders(folder_, "none", 2 * one), 1);
  EXPECT_FALSE(fs::exists(folder(2)));
  auto open = start(3);
  EXPECT_EQ(remove_old_folders(folder_, "none", one), 1) << "not what a server has open";
  EXPECT_TRUE(fs::exists(folder(3)));
  EXPECT_FALSE(fs::exists(folder(1)));
  open.reset();
  std::ofstream(folder(3) / "notes.txt") << "not ours";
  EXPECT_EQ(remove_old_folders(folder_, "none", 0), 0);
  EXPECT_TRUE(fs::exists(folder(3) / "notes.txt"));
}

TEST_F(DiskThreadTest, AStartMakesRoomForItsOwnFiles) {
  ASSERT_EQ(run(*start(1), job(Kind::write, kFrom)), DiskOutcome::done);
  DiskPlace place{.path = folder_, .bytes = 1};
  place.identity[0] = 2;
  DiskThread disk(place, memory_.data(), kUnit, bell_);
  ASSERT_EQ(run(disk, job(Kind::write, kFrom)), DiskOutcome::done);  // behind the cleaning
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(files().at(0).parent_path().filename(), "020000000000");
}

TEST_F(DiskThreadTest, AfterAFailedWriteTheDiskIsLeftAlone) {
  std::ofstream(folder_) << "no folder";
  auto disk = start();
  EXPECT_TRUE(disk->found().empty());
  EXPECT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::failed);
  EXPECT_EQ(run(*disk, job(Kind::write, kFrom)), DiskOutcome::failed);
  EXPECT_EQ(run(*disk, job(Kind::read, kTo)), DiskOutcome::failed);
  disk.reset();
  fs::remove(folder_);
}

}  // namespace
}  // namespace sluice
