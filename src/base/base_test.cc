// Files, logs, checks, results.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/crash_record.h"
#include "base/log.h"
#include "base/log_scope.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace sluice {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  std::string write(const std::string& bytes) {
    const std::string path = testing::TempDir() + "sluice_base_" + std::to_string(getpid());
    std::ofstream(path, std::ios::binary) << bytes;
    paths_.push_back(path);
    return path;
  }
  void TearDown() override {
    for (const auto& p : paths_) std::filesystem::remove(p);
  }
  static std::string text(const MappedFile& f) {
    return {reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size()};
  }
  std::vector<std::string> paths_;
};

TEST_F(MappedFileTest, ShowsTheBytesAndMovesThem) {
  auto file = MappedFile::open(write("hello"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(text(*file), "hello");
  MappedFile moved = std::move(*file);
  EXPECT_EQ(text(moved), "hello");
  MappedFile assigned;
  assigned = std::move(moved);
  EXPECT_EQ(text(assigned), "hello");
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, DroppedPagesAreReadAgain) {
  const std::string bytes(3 * size_t(sysconf(_SC_PAGESIZE)), 'x');
  auto file = MappedFile::open(write(bytes));
  ASSERT_TRUE(file.ok());
  file->drop(0, bytes.size());
  file->drop(1, 2);                    // less than a page: nothing
  file->drop(0, bytes.size() * 1000);  // beyond the end: nothing
  EXPECT_EQ(text(*file), bytes);
}

TEST_F(MappedFileTest, AnEmptyFileIsAFile) {
  auto file = MappedFile::open(write(""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  auto absent = MappedFile::open("/nowhere/at/all");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_NE(absent.error().message.find("/nowhere/at/all"), std::string::npos);
  auto folder = MappedFile::open(testing::TempDir());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().code, ErrorCode::kIo);
}

TEST(Log, LevelsBelowTheThresholdAreNotEvenFormatted) {
  set_log_level(LogLevel::warn);
  int formatted = 0;
  const auto value = [&] { return ++formatted; };
  testing::internal::CaptureStderr();
  LOG(info, "quiet {}", value());
  LOG(warn, "loud {}", value());
  const std::string out = testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::info);
  EXPECT_EQ(formatted, 1);
  EXPECT_EQ(out.find("quiet"), std::string::npos);
  EXPECT_NE(out.find("loud 1"), std::string::npos);
}

TEST(Log, JsonLinesStayJsonWhateverTheText) {
  set_log_json(true);
  testing::internal::CaptureStderr();
  LOG(info, "a \"quote\", a back\\slash and a\nline");
  const std::string out = testing::internal::GetCapturedStderr();
  set_log_json(false);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
  EXPECT_NE(out.find(R"("message":"a \"quote\", a back\\slash and a\u000aline")"), std::string::npos) << out;
}

TEST(Log, LinesOfAScopeCarryItsIds) {
  const auto logged = [](bool json, const char* text) {
    set_log_json(json);
    testing::internal::CaptureStderr();
    LOG(info, "{}", text);
    set_log_json(false);
    return testing::internal::GetCapturedStderr();
  };
  {
    const LogScope outer({"req \"1\"", "4bf9", "00f0", true});
    EXPECT_NE(
        logged(true, "x").find(
            R"("message":"x","request_id":"req \"1\"","trace_id":"4bf9","span_id":"00f0","trace_flags":"01"})"),
        std::string::npos);
    EXPECT_NE(logged(false, "x").find("x trace_id=4bf9 span_id=00f0\n"), std::string::npos);
    {
      const LogScope inner({"req-2", "", ""});
      EXPECT_NE(logged(true, "y").find(R"("message":"y","request_id":"req-2"})"), std::string::npos);
      EXPECT_NE(logged(false, "y").find("y\n"), std::string::npos);
    }
    EXPECT_NE(logged(true, "z").find("4bf9"), std::string::npos);
  }
  EXPECT_NE(logged(true, "x").find(R"("message":"x"})"), std::string::npos);
}

TEST(CheckDeathTest, SaysWhereAndWhatAndRunsTheHookOnce) {
  EXPECT_DEATH(CHECK(1 == 2, "numbers"), "base_test.cc.*CHECK\\(1 == 2\\) failed: numbers");
  EXPECT_DEATH(
      {
        set_check_hook([] { std::fprintf(stderr, "the hook ran\n"); });
        CHECK(false);
      },
      "failed\nthe hook ran");
  EXPECT_DEATH(
      {
        set_check_hook([] { CHECK(false, "from the hook"); });
        CHECK(false, "outer");
      },
      "outer\n.*from the hook");
  CHECK(true, "nothing happens");
}

TEST(CheckDeathTest, ASignalOfAFaultRunsTheHookAndTakesItsCourse) {
  EXPECT_DEATH(
      {
        set_check_hook([] { std::fprintf(stderr, "the hook ran\n"); });
        record_crashes();
        raise(SIGFPE);
      },
      "signal 8; the last steps:\nthe hook ran");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<std::string> good = std::string("v");
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, "v");
  EXPECT_EQ(good->size(), 1u);
  Result<std::string> bad = Error{ErrorCode::kTooLarge, "too large", "prompt"};
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kTooLarge);
  EXPECT_EQ(bad.error().field, "prompt");
  EXPECT_TRUE(Status().ok());
  EXPECT_FALSE(Status(Error{ErrorCode::kIo, "x"}).ok());
  EXPECT_DEATH((void)bad.value(), "CHECK");
  EXPECT_DEATH((void)good.error(), "CHECK");
}

}  // namespace
}  // namespace sluice
