#include "base/topology.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace sluice {
namespace {

std::string two_sockets_four_cards() {
  std::stringstream text;
  text << std::ifstream(SLUICE_SOURCE_DIR "/src/base/testdata/two_sockets_four_cards.xml").rdbuf();
  return text.str();
}

TEST(Topology, CoresOfTwoSocketsWithTwoThreadsEach) {
  const Result<Topology> t = described_topology("pack:2 [numa] core:4 pu:2");
  ASSERT_TRUE(t.ok());
  EXPECT_TRUE(t->described);
  ASSERT_EQ(t->cores.size(), 8u);
  EXPECT_EQ(t->cores[0].cpus, CpuSet({0, 1}));
  EXPECT_EQ(t->cores[3].node, 0);
  EXPECT_EQ(t->cores[4].node, 1);
  EXPECT_EQ(t->cores[4].cpus, CpuSet({8, 9}));
  EXPECT_EQ(t->nodes(), (std::vector<int>{0, 1}));
  EXPECT_EQ(cpu_list(t->cpus()), "0-15");
}

TEST(Topology, CardsHangOnTheirSocket) {
  const Result<Topology> t = described_topology(two_sockets_four_cards());
  ASSERT_TRUE(t.ok()) << t.error().message;
  ASSERT_EQ(t->cards.size(), 4u) << "network cards are none of them";
  EXPECT_EQ(node_of_card(*t, "0000:18:00.0"), 0);
  EXPECT_EQ(node_of_card(*t, "00000000:3B:00.0"), 0) << "as NVML writes it";
  EXPECT_EQ(node_of_card(*t, "0000:98:00.0"), 1);
  EXPECT_EQ(node_of_card(*t, "0000:BB:00.0"), 1) << "as CUDA writes it";
  EXPECT_EQ(node_of_card(*t, "0000:99:00.0"), -1);
  EXPECT_EQ(node_of_card(*t, "no bus id"), -1);
  // Threads of a core are numbered apart, as Linux does.
  EXPECT_EQ(t->cores[0].cpus, CpuSet({0, 8}));
}

TEST(Topology, OfCpusThatMayBeUsedAlone) {
  const Result<Topology> whole = described_topology(two_sockets_four_cards());
  ASSERT_TRUE(whole.ok());
  // A cgroup of three cores, of which one hardware thread is offline.
  const Topology t = restricted(*whole, {0, 1, 9, 4, 12});
  ASSERT_EQ(t.cores.size(), 3u);
  EXPECT_EQ(t.cores[0].cpus, CpuSet({0}));
  EXPECT_EQ(t.cores[1].cpus, CpuSet({1, 9}));
  EXPECT_EQ(t.cores[2].cpus, CpuSet({4, 12}));
  EXPECT_EQ(t.nodes(), (std::vector<int>{0, 1}));
  EXPECT_EQ(restricted(*whole, {0, 8}).nodes(), (std::vector<int>{0}));
}

TEST(Topology, WhatHwlocDoesNotUnderstandIsAnError) {
  for (const char* text : {"pack:two", "<topology", ""}) EXPECT_FALSE(described_topology(text).ok()) << text;
}

TEST(Topology, OfThisMachineIsWhatTheKernelAllows) {
  const Result<Topology> t = read_topology();
  ASSERT_TRUE(t.ok()) << t.error().message;
  if (!t->described) {
    EXPECT_EQ(t->cpus(), allowed_cpus(0));
  }
  EXPECT_FALSE(t->nodes().empty());
}

}  // namespace
}  // namespace sluice
