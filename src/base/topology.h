// How this machine's CPUs, memory and cards lie, as far as it matters where threads run. Read by hwloc, whose
// header and types stay in topology.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/cpu_set.h"
#include "base/result.h"

namespace sluice {

// Plain values: tests write their own.
struct Topology {
  struct Core {
    int node = 0;  // memory node that is near to it, by the kernel's number
    CpuSet cpus;   // its hardware threads that may be used
  };
  struct Card {
    std::string bus_id;  // "0000:3b:00.0"
    int node = -1;       // that it hangs on; -1: the machine does not say
  };
  std::vector<Core> cores;  // by node, then by first CPU; those without a CPU that may be used are left out
  std::vector<Card> cards;  // graphics and compute devices of the PCI bus
  bool described = false;   // not this machine's: from a text, or from HWLOC_XMLFILE

  CpuSet cpus() const;
  std::vector<int> nodes() const;  // of cores, ascending
};

// With these CPUs alone.
Topology restricted(const Topology& topology, const CpuSet& cpus);

// -1: not known. Bus ids are compared as numbers, so in any way of writing them.
int node_of_card(const Topology& topology, std::string_view bus_id);

// This machine, with the CPUs that are online, that the cgroup allows and that the calling thread may run on.
// Sets HWLOC_PLUGINS_PATH, so call it before other threads start. Takes milliseconds. Errors: hwloc finds
// nothing.
Result<Topology> read_topology();
// hwloc's synthetic notation ("pack:2 [numa] core:8 pu:2"), or its XML.
Result<Topology> described_topology(const std::string& text);

}  // namespace sluice
