#include "tensor/cpu/team.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <vector>

namespace sluice::cpu {
namespace {

TEST(Team, EveryMemberRunsEachJobOnce) {
  for (int size : {1, 2, 5}) {
    Team team(size);
    std::vector<int> count(size_t(size), 0);
    for (int i = 0; i < 300; ++i) {
      team.run([&](int member, int members) {
        EXPECT_EQ(members, size);
        ++count[size_t(member)];
      });
    }
    EXPECT_EQ(count, std::vector<int>(size_t(size), 300));
  }
}

TEST(Team, BarrierSeparatesPhases) {
  Team team(4);
  std::array<int, 4> written{};
  std::atomic<int> wrong{0};
  team.run([&](int member, int size) {
    for (int phase = 1; phase <= 100; ++phase) {
      written[size_t(member)] = phase;
      team.barrier();
      for (int other = 0; other < size; ++other) wrong += written[size_t(other)] != phase;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Team, EveryTaskRunsOnceAndIsDoneOnReturn) {
  for (int size : {1, 2, 5}) {
    Team team(size);
    for (int round = 0; round < 500; ++round) {
      std::vector<int> done(size_t(round % 37), 0);  // not atomic: returning means that all writes are seen
      std::atomic<bool> bad_member{false};
      team.run_tasks(int(done.size()), [&](int task, int member) {
        ++done[size_t(task)];
        if (member < 0 || member >= size) bad_member = true;
      });
      EXPECT_EQ(done, std::vector<int>(done.size(), 1));
      EXPECT_FALSE(bad_member.load());
    }
  }
}

TEST(Team, BothKindsOfJobsInTurn) {
  Team team(3);
  std::atomic<int> runs{0}, tasks{0};
  for (int i = 0; i < 500; ++i) {
    team.run_tasks(5, [&](int, int) { ++tasks; });
    if (i % 3 == 0) team.run([&](int, int) { ++runs; });
  }
  EXPECT_EQ(tasks.load(), 2500);
  EXPECT_EQ(runs.load(), 167 * 3);
}

}  // namespace
}  // namespace sluice::cpu
