#include "base/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

namespace sluice {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Handle = std::unique_ptr<hwloc_topology, Destroy>;

CpuSet cpu_set_of(hwloc_const_cpuset_t set) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0 && cpu < kMostCpus; cpu = hwloc_bitmap_next(set, cpu))
    cpus.push_back(cpu);
  return CpuSet(std::move(cpus));
}

// Of several near ones (memory on the package beside the usual one) the lowest.
int node_of(hwloc_topology_t topology, hwloc_const_cpuset_t near) {
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
    if (hwloc_bitmap_isincluded(near, node->cpuset)) return int(node->os_index);
  return -1;
}

using BusId = std::tuple<unsigned, unsigned, unsigned, unsigned>;
std::optional<BusId> bus_id_of(std::string_view text) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  if (std::sscanf(std::string(text).c_str(), "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return {};
  return BusId{domain, bus, device, function};
}

void add_cards(hwloc_topology_t topology, Topology& out) {
  constexpr unsigned kDisplay = 0x03, kAccelerator = 0x12;  // PCI base classes
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(topology, device)) != nullptr;) {
    const auto& pci = device->attr->pcidev;
    if (pci.class_id >> 8 != kDisplay && pci.class_id >> 8 != kAccelerator) continue;
    char id[32];
    std::snprintf(id, sizeof id, "%04x:%02x:%02x.%x", unsigned(pci.domain), unsigned(pci.bus),
                  unsigned(pci.dev), unsigned(pci.func));
    const hwloc_obj_t at = hwloc_get_non_io_ancestor_obj(topology, device);
    out.cards.push_back({id, at != nullptr ? node_of(topology, at->cpuset) : -1});
  }
}

Result<Topology> load(hwloc_topology_t topology) {
  // What the processor says of itself is asked on each CPU in turn, which would move this thread about; the
  // kernel knows the same.
  hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) != 0) return Error{ErrorCode::kIo, "hwloc cannot read the topology"};
  Topology out;
  out.described = hwloc_topology_is_thissystem(topology) == 0;
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;)
    out.cores.push_back({std::max(0, node_of(topology, core->cpuset)), cpu_set_of(core->cpuset)});
  // Some virtual machines show CPUs and no cores.
  if (out.cores.empty())
    for (hwloc_obj_t pu = nullptr; (pu = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, pu)) != nullptr;)
      out.cores.push_back({std::max(0, node_of(topology, pu->cpuset)), cpu_set_of(pu->cpuset)});
  std::sort(out.cores.begin(), out.cores.end(), [](const Topology::Core& a, const Topology::Core& b) {
    return std::pair(a.node, a.cpus.first()) < std::pair(b.node, b.cpus.first());
  });
  add_cards(topology, out);
  if (out.cores.empty()) return Error{ErrorCode::kIo, "hwloc finds no CPU"};
  return out;
}

Handle make() {
  // Plugins are shared objects that link another hwloc; nothing that they find is wanted here.
  setenv("HWLOC_PLUGINS_PATH", "", 1);
  hwloc_topology_t topology = nullptr;
  return Handle(hwloc_topology_init(&topology) == 0 ? topology : nullptr);
}

}  // namespace

CpuSet Topology::cpus() const {
  CpuSet all;
  for (const Core& core : cores) all.add(core.cpus);
  return all;
}

std::vector<int> Topology::nodes() const {
  std::set<int> found;
  for (const Core& core : cores) found.insert(core.node);
  return {found.begin(), found.end()};
}

Topology restricted(const Topology& topology, const CpuSet& cpus) {
  Topology out = topology;
  for (Topology::Core& core : out.cores) core.cpus = core.cpus & cpus;
  std::erase_if(out.cores, [](const Topology::Core& core) { return core.cpus.empty(); });
  return out;
}

int node_of_card(const Topology& topology, std::string_view bus_id) {
  const auto wanted = bus_id_of(bus_id);
  for (const Topology::Card& card : topology.cards)
    if (wanted && bus_id_of(card.bus_id) == wanted) return card.node;
  return -1;
}

Result<Topology> read_topology() {
  const Handle handle = make();
  if (!handle) return Error{ErrorCode::kIo, "hwloc does not start"};
  Result<Topology> topology = load(handle.get());
  if (!topology || topology->described) return topology;
  return restricted(*topology, allowed_cpus(0));
}

Result<Topology> described_topology(const std::string& text) {
  const Handle handle = make();
  const bool xml = text.starts_with('<');
  if (!handle || (xml ? hwloc_topology_set_xmlbuffer(handle.get(), text.c_str(), int(text.size()) + 1)
                      : hwloc_topology_set_synthetic(handle.get(), text.c_str())) != 0)
    return Error{ErrorCode::kInvalidArgument, "hwloc does not understand \"" + text.substr(0, 80) + "\""};
  return load(handle.get());
}

}  // namespace sluice
