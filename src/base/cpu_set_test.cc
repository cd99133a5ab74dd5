#include "base/cpu_set.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "base/usable_cores.h"

namespace sluice {
namespace {

TEST(CpuSet, IsWrittenAndReadAsTheKernelDoes) {
  EXPECT_EQ(cpu_list({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(cpu_list({}), "");
  for (const char* text : {"0", "0-3,8", "5,7,9", "4095", "0-4095"}) {
    const Result<CpuSet> set = parse_cpu_list(text);
    ASSERT_TRUE(set.ok()) << text;
    EXPECT_EQ(cpu_list(*set), text);
  }
  EXPECT_EQ(*parse_cpu_list("3,1-2,2"), CpuSet({1, 2, 3}));
}

TEST(CpuSet, WhatIsNoListIsRefused) {
  for (const char* text :
       {"", ",", "1,", ",1", "a", "3-1", "1-", "-1", "1 2", "0x3", "4096", "1-99999999999", "0-3,,4"})
    EXPECT_FALSE(parse_cpu_list(text).ok()) << text;
}

TEST(CpuSet, Algebra) {
  const CpuSet a{0, 1, 2, 3}, b{2, 3, 4};
  EXPECT_EQ(a & b, CpuSet({2, 3}));
  EXPECT_EQ(a - b, CpuSet({0, 1}));
  CpuSet both = a;
  both.add(b);
  EXPECT_EQ(both, CpuSet({0, 1, 2, 3, 4}));
  EXPECT_TRUE(a.contains(3));
  EXPECT_FALSE(a.contains(4));
}

TEST(Binding, IsInheritedAndSeenByTheKernel) {
  const CpuSet all = allowed_cpus(0);
  ASSERT_FALSE(all.empty());
  std::thread([&] {
    const CpuSet one{all.first()};
    ASSERT_TRUE(bind_thread(0, one).ok());
    EXPECT_EQ(allowed_cpus(0), one);
    std::thread([&] { EXPECT_EQ(allowed_cpus(0), one); }).join();
  }).join();
  EXPECT_EQ(allowed_cpus(0), all) << "of the thread that was not bound";
}

TEST(Binding, OfAnotherThreadByItsNumber) {
  const CpuSet all = allowed_cpus(0), one{all.first()};
  ASSERT_TRUE(bind_thread(gettid(), one).ok());
  EXPECT_EQ(allowed_cpus(gettid()), one);
  ASSERT_TRUE(bind_thread(gettid(), all).ok());
}

TEST(Binding, ToCpusThatAreNotThereSaysWhatTheKernelSaid) {
  const Status refused = bind_thread(0, {kMostCpus - 1});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("CPUs 4095"), std::string::npos) << refused.error().message;
  const CpuSet all = allowed_cpus(0);
  CpuSet more = all;
  more.add({kMostCpus - 1});
  // The kernel takes what there is of the set, so that only asking it again tells.
  const Status cut = bind_thread(0, more);
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.error().message.find("made it " + cpu_list(all)), std::string::npos) << cut.error().message;
}

TEST(Binding, ThreadsAreFoundByName) {
  bool found = false;
  for (const NamedThread& thread : threads_of_process()) found |= thread.id == gettid() && !thread.name.empty();
  EXPECT_TRUE(found);
}

// Where the kernel forbids it (some containers), it says so.
TEST(Memory, IsInterleavedOverTheNodeThatIsThere) {
  std::thread([] {
    if (const Status spread = interleave_memory({0}); !spread.ok()) {
      EXPECT_NE(spread.error().message.find("spread"), std::string::npos);
      return;
    }
    EXPECT_TRUE(interleave_memory({}).ok());
  }).join();
}

TEST(UsableCores, AreAtMostTheCpusOfTheThread) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), allowed_cpus(0).size());
  EXPECT_EQ(cores_of({allowed_cpus(0).first()}), 1);
  EXPECT_EQ(cores_of({}), 0);
}

}  // namespace
}  // namespace sluice
