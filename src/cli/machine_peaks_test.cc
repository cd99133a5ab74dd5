#include "cli/machine_peaks.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sluice::cli {
namespace {

TEST(MachinePeaks, TheBestOfSeveralMeasurementsIsKept) {
  const std::string file = std::filesystem::path(testing::TempDir()) / "peaks_test.json";
  std::filesystem::remove(file);
  EXPECT_EQ(kept_peaks(file, "this").measurements, 0);
  ASSERT_TRUE(keep_peaks(file, "this", {2e9, 5e12}));  // while something else read memory
  ASSERT_TRUE(keep_peaks(file, "this", {10e9, 4e12}));
  EXPECT_EQ(kept_peaks(file, "this").measurements, 2);
  EXPECT_EQ(kept_peaks(file, "this").best.bytes_s, 10e9);
  EXPECT_EQ(kept_peaks(file, "this").best.flops_s, 5e12);
  EXPECT_EQ(kept_peaks(file, "another").measurements, 0);
  ASSERT_TRUE(keep_peaks(file, "another", {1e9, 1e12}));
  EXPECT_EQ(kept_peaks(file, "another").best.bytes_s, 1e9);
}

TEST(MachinePeaks, AFileWithoutACountIsOneToImproveOn) {
  const std::string file = std::filesystem::path(testing::TempDir()) / "old_peaks_test.json";
  std::ofstream(file) << R"({"machine":"this","read_bytes_s":1.9e9,"int8_ops_s":16e12})";
  EXPECT_EQ(kept_peaks(file, "this").best.bytes_s, 1.9e9);
  EXPECT_EQ(kept_peaks(file, "this").measurements, 0);
  EXPECT_FALSE(keep_peaks("/nonexistent/peaks.json", "this", {}));
}

}  // namespace
}  // namespace sluice::cli
