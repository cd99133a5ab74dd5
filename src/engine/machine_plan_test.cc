// Where threads and memory go, on machines that are not here.
#include "engine/machine_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// hwloc's notation numbers the hardware threads of a core one after the other.
Topology machine(const std::string& text) {
  const Result<Topology> t = described_topology(text);
  EXPECT_TRUE(t.ok()) << text;
  return *t;
}

// Two sockets of eight cores with two hardware threads each: node 0 has CPUs 0-15, node 1 16-31; two cards
// each.
Topology two_sockets_four_cards() {
  Topology t = machine("pack:2 [numa] core:8 pu:2");
  t.cards = {{"0000:18:00.0", 0}, {"0000:3b:00.0", 0}, {"0000:98:00.0", 1}, {"0000:bb:00.0", 1}};
  return t;
}

MachineWish on_card(const char* bus_id, MachineSettings settings = {}) {
  return {.settings = std::move(settings), .card = true, .card_bus_id = bus_id};
}
MachineWish on_cpu(MachineSettings settings = {}) { return {.settings = std::move(settings)}; }

MachinePlan plan(const Topology& topology, const MachineWish& wish) {
  const Result<MachinePlan> made = plan_machine(topology, wish);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? *made : MachinePlan{};
}

// Whose key, and why.
std::string refusal(const Topology& topology, const MachineWish& wish) {
  const Result<MachinePlan> made = plan_machine(topology, wish);
  return made.ok() ? "" : made.error().field + ": " + made.error().message;
}

std::vector<std::string> lists(const std::vector<CpuSet>& sets) {
  std::vector<std::string> out;
  for (const CpuSet& set : sets) out.push_back(cpu_list(set));
  return out;
}

TEST(MachinePlan, TheEngineGoesToTheCardsNodeAndSocketsElsewhere) {
  for (const auto& [bus_id, home, io, node] : {std::tuple{"0000:3B:00.0", "0-15", "16-31", 0},
                                               {"0000:98:00.0", "16-31", "0-15", 1},
                                               {"00000000:BB:00.0", "16-31", "0-15", 1}}) {
    const MachinePlan p = plan(two_sockets_four_cards(), on_card(bus_id));
    EXPECT_TRUE(p.binds);
    EXPECT_EQ(p.home_node, node) << bus_id;
    EXPECT_EQ(cpu_list(p.home), home);
    EXPECT_EQ(cpu_list(p.engine), home);
    EXPECT_EQ(cpu_list(p.io), io);
    EXPECT_THAT(p.compute, IsEmpty());
    EXPECT_THAT(p.interleave, IsEmpty()) << "pinned memory lies where the thread that asks for it runs";
  }
}

TEST(MachinePlan, OnTheCpuOneThreadACoreOverAllNodes) {
  const MachinePlan p = plan(two_sockets_four_cards(), on_cpu());
  ASSERT_EQ(p.compute.size(), 16u) << "cores, not hardware threads";
  for (int i = 0; i < 16; ++i)
    EXPECT_EQ(cpu_list(p.compute[size_t(i)]), i < 8 ? "0,2,4,6,8,10,12,14" : "16,18,20,22,24,26,28,30");
  EXPECT_THAT(p.interleave, ElementsAre(0, 1));
  EXPECT_EQ(cpu_list(p.io), "0-31");
}

TEST(MachinePlan, FewerThreadsAreSpreadOverTheNodes) {
  MachineWish wish = on_cpu();
  wish.cpu_threads = 2;
  const MachinePlan p = plan(two_sockets_four_cards(), wish);
  EXPECT_THAT(lists(p.compute), ElementsAre("0,2,4,6,8,10,12,14", "16,18,20,22,24,26,28,30"));
}

TEST(MachinePlan, MoreThreadsThanCoresUseAllHardwareThreads) {
  MachineWish wish = on_cpu({.numa = "1"});
  wish.cpu_threads = 12;
  const MachinePlan p = plan(two_sockets_four_cards(), wish);
  ASSERT_EQ(p.compute.size(), 12u);
  EXPECT_EQ(cpu_list(p.compute[11]), "16-31");
}

TEST(MachinePlan, WhoAsksForANodeGetsThatNodeAlone) {
  const MachinePlan cpu = plan(two_sockets_four_cards(), on_cpu({.numa = "1"}));
  EXPECT_EQ(cpu_list(cpu.home), "16-31");
  EXPECT_EQ(cpu_list(cpu.io), "16-31") << "the other node is another server's";
  EXPECT_EQ(cpu.compute.size(), 8u);
  EXPECT_THAT(cpu.interleave, IsEmpty());
  const MachinePlan card = plan(two_sockets_four_cards(), on_card("0000:18:00.0", {.numa = "1"}));
  EXPECT_EQ(card.home_node, 1) << "against the card's place, since it was asked for";
  EXPECT_EQ(cpu_list(card.io), "16-31");
}

TEST(MachinePlan, OneNodeIsLeftToTheKernel) {
  for (const char* text :
       {"pack:1 [numa] core:8 pu:2", "core:4 pu:1", "pack:1 [numa] core:1 pu:2", "core:1 pu:1"}) {
    const Topology t = machine(text);
    for (const MachineWish& wish : {on_cpu(), on_card("0000:18:00.0")}) {
      const MachinePlan p = plan(t, wish);
      EXPECT_FALSE(p.binds) << text;
      EXPECT_THAT(thread_places(p), IsEmpty());
      EXPECT_THAT(p.interleave, IsEmpty());
      EXPECT_EQ(p.compute.size(), wish.card ? 0 : t.cores.size());
    }
  }
}

TEST(MachinePlan, OffLeavesSeveralNodesToTheKernelToo) {
  for (const MachineWish& wish : {on_cpu({.numa = "off"}), on_card("0000:98:00.0", {.numa = "off"})}) {
    const MachinePlan p = plan(two_sockets_four_cards(), wish);
    EXPECT_FALSE(p.binds);
    EXPECT_THAT(p.interleave, IsEmpty());
    EXPECT_EQ(cpu_list(p.cpus), "0-31");
  }
}

TEST(MachinePlan, ACardOfAnUnknownPlaceBindsNothing) {
  const MachinePlan p = plan(two_sockets_four_cards(), on_card("0000:99:00.0"));
  EXPECT_FALSE(p.binds);
  EXPECT_THAT(describe(p), HasSubstr("does not say which node the card is on"));
}

TEST(MachinePlan, ACgroupWithoutCpusOnTheCardsNode) {
  const Topology t = restricted(two_sockets_four_cards(), *parse_cpu_list("0-7"));
  const MachinePlan alone = plan(t, on_card("0000:98:00.0"));
  EXPECT_FALSE(alone.binds) << "one node is left";
  // Two nodes, of which neither is the card's.
  Topology four = machine("pack:4 [numa] core:2 pu:1");
  four.cards = {{"0000:98:00.0", 3}};
  const MachinePlan p = plan(restricted(four, *parse_cpu_list("0-3")), on_card("0000:98:00.0"));
  EXPECT_FALSE(p.binds);
  EXPECT_THAT(p.note, HasSubstr("node 3, none of whose CPUs may be used"));
}

TEST(MachinePlan, ACgroupsSetAndOfflineCpusAreRespected) {
  // Of node 0 three cores, one of which has lost a hardware thread; of node 1 one core.
  const Topology t = restricted(two_sockets_four_cards(), *parse_cpu_list("2-3,5,8-9,30-31"));
  const MachinePlan cpu = plan(t, on_cpu());
  EXPECT_EQ(cpu_list(cpu.cpus), "2-3,5,8-9,30-31");
  EXPECT_THAT(lists(cpu.compute), ElementsAre("2,5,8", "2,5,8", "2,5,8", "30"));
  const MachinePlan card = plan(t, on_card("0000:98:00.0"));
  EXPECT_EQ(cpu_list(card.home), "30-31");
  EXPECT_EQ(cpu_list(card.io), "2-3,5,8-9");
}

TEST(MachinePlan, AQuotaLimitsTheThreadsAndNotTheirPlace) {
  for (const auto& [quota, threads] : {std::pair{3.5, 3u}, {0.5, 1u}, {64.0, 16u}}) {
    MachineWish wish = on_cpu();
    wish.quota_cores = quota;
    const MachinePlan p = plan(two_sockets_four_cards(), wish);
    EXPECT_EQ(p.compute.size(), threads);
    EXPECT_EQ(cpu_list(p.home), "0-31");
  }
}

TEST(MachinePlan, TheSetOfCpusIsTheWholeProcesss) {
  const MachinePlan p = plan(two_sockets_four_cards(), on_cpu({.cpu_set = "16-19"}));
  EXPECT_EQ(cpu_list(p.cpus), "16-19");
  EXPECT_EQ(p.compute.size(), 2u);
  EXPECT_FALSE(p.binds) << "within it, one node";
}

TEST(MachinePlan, CoresForSocketsAreTakenAwayFromTheModel) {
  const MachinePlan one_node = plan(machine("pack:1 [numa] core:8 pu:2"), on_cpu({.io_threads = 2}));
  EXPECT_TRUE(one_node.binds);
  EXPECT_EQ(cpu_list(one_node.home), "0-11");
  EXPECT_EQ(cpu_list(one_node.io), "12-15");
  EXPECT_EQ(one_node.compute.size(), 6u);
  // On two nodes they are taken where the card is not, and of its node when those do not suffice.
  const MachinePlan near = plan(two_sockets_four_cards(), on_card("0000:98:00.0", {.io_threads = 2}));
  EXPECT_EQ(cpu_list(near.io), "0-3");
  EXPECT_EQ(cpu_list(near.home), "16-31");
  const MachinePlan many = plan(two_sockets_four_cards(), on_card("0000:98:00.0", {.io_threads = 10}));
  EXPECT_EQ(cpu_list(many.io), "0-15,28-31");
  EXPECT_EQ(cpu_list(many.home), "16-27");
}

TEST(MachinePlan, TheEnginesCpuIsItsOwn) {
  const MachinePlan p = plan(machine("pack:1 [numa] core:4 pu:2"), on_cpu({.engine_cpu = 0}));
  EXPECT_EQ(cpu_list(p.engine), "0");
  EXPECT_EQ(cpu_list(p.home), "2-7") << "its core's other hardware thread stays idle";
  EXPECT_EQ(cpu_list(p.io), "2-7");
  EXPECT_EQ(p.compute.size(), 3u);
  // With one core there is nowhere else to go.
  const MachinePlan one = plan(machine("core:1 pu:1"), on_cpu({.engine_cpu = 0}));
  EXPECT_EQ(cpu_list(one.home), "0");
  EXPECT_EQ(cpu_list(one.io), "0");
  EXPECT_EQ(one.compute.size(), 1u);
}

TEST(MachinePlan, TheEnginesCpuIsNotOneOfTheSockets) {
  const MachinePlan p = plan(machine("pack:1 [numa] core:4 pu:2"), on_cpu({.io_threads = 2, .engine_cpu = 7}));
  EXPECT_EQ(cpu_list(p.engine), "7");
  EXPECT_EQ(cpu_list(p.io), "2-5");
  EXPECT_EQ(cpu_list(p.home), "0-1");
  EXPECT_THAT(refusal(machine("core:2 pu:1"), on_cpu({.io_threads = 1, .engine_cpu = 1})),
              HasSubstr("machine.io_threads: must be from 0 to 0, so that a core is left for the model beside "
                        "machine.engine_cpu, not 1"));
}

TEST(MachinePlan, SocketsGoToTheModelsCoresWhereTheEngineHasTheOnlyOther) {
  // Node 0 has one core that may be used, the card's node 1 has eight.
  const Topology t = restricted(two_sockets_four_cards(), *parse_cpu_list("0,16-31"));
  const MachinePlan shared = plan(t, on_card("0000:98:00.0", {.engine_cpu = 0}));
  EXPECT_EQ(cpu_list(shared.engine), "0");
  EXPECT_EQ(cpu_list(shared.io), "16-31");
  const MachinePlan kept = plan(t, on_card("0000:98:00.0", {.io_threads = 1, .engine_cpu = 0}));
  EXPECT_EQ(cpu_list(kept.io), "30-31");
  EXPECT_EQ(cpu_list(kept.home), "16-29");
}

TEST(MachinePlan, WrongSettingsNameTheKeyAndWhatItMayBe) {
  const Topology t = two_sockets_four_cards();
  for (const char* numa : {"", "2", "-1", "on", "0x1", "1 "})
    EXPECT_THAT(refusal(t, on_cpu({.numa = numa})),
                testing::AllOf(HasSubstr("machine.numa: "), HasSubstr("here 0, 1")))
        << numa;
  EXPECT_THAT(refusal(t, on_cpu({.cpu_set = "0-"})), HasSubstr("machine.cpu_set: must be a list of CPUs"));
  EXPECT_THAT(refusal(t, on_cpu({.cpu_set = "0,40-41"})),
              HasSubstr("machine.cpu_set: CPUs 40-41 may not be used here; there are 0-31"));
  EXPECT_THAT(refusal(t, on_cpu({.io_threads = 16})), HasSubstr("machine.io_threads: must be from 0 to 15"));
  EXPECT_THAT(refusal(t, on_cpu({.numa = "0", .io_threads = 8})),
              HasSubstr("machine.io_threads: must be from 0 to 7"));
  EXPECT_THAT(refusal(machine("core:1 pu:1"), on_cpu({.io_threads = 1})), HasSubstr("must be from 0 to 0"));
  EXPECT_THAT(refusal(t, on_cpu({.cpu_set = "0-3", .engine_cpu = 4})),
              HasSubstr("machine.engine_cpu: must be one of the CPUs that may be used (0-3)"));
}

TEST(MachinePlan, IsToldInALineOrTwo) {
  EXPECT_EQ(describe(plan(machine("core:2 pu:1"), on_cpu())),
            "1 memory node, 2 cores, CPUs 0-1; 2 compute threads; no thread is bound");
  EXPECT_EQ(describe(plan(two_sockets_four_cards(), on_card("0000:98:00.0"))),
            "2 memory nodes, 16 cores, CPUs 0-31\n"
            "launches and pinned memory on CPUs 16-31 (node 1), network and text on CPUs 0-15");
  EXPECT_EQ(describe(plan(two_sockets_four_cards(), on_cpu())),
            "2 memory nodes, 16 cores, CPUs 0-31; 16 compute threads\n"
            "model on CPUs 0-31, network and text on CPUs 0-31; memory spread over nodes 0, 1");
}

TEST(MachinePlan, ThreadsHavePlacesByName) {
  MachineWish wish = on_cpu({.io_threads = 1});
  const std::vector<ThreadPlace> places = thread_places(plan(machine("core:3 pu:1"), wish));
  std::vector<std::string> told;
  for (const ThreadPlace& place : places) told.push_back(place.name + " " + cpu_list(place.cpus));
  EXPECT_THAT(told, ElementsAre("sluice-net 2", "sluice-text 2", "sluice-engine 0-1", "sluice-executor 0-1",
                                "sluice-cpu-1 0-1"));
}

}  // namespace
}  // namespace sluice
