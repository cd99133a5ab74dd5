#include "engine/machine_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace sluice {
namespace {

Error refused(const char* key, std::string why) { return {ErrorCode::kInvalidArgument, std::move(why), key}; }

Result<Topology> cpus_to_use(const Topology& topology, const std::string& wished) {
  if (wished.empty()) return topology;
  const Result<CpuSet> set = parse_cpu_list(wished);
  if (!set) return refused("machine.cpu_set", set.error().message);
  if (const CpuSet absent = *set - topology.cpus(); !absent.empty())
    return refused("machine.cpu_set",
                   fmt::format("CPU{} {} may not be used here; there are {}", absent.size() == 1 ? "" : "s",
                               cpu_list(absent), cpu_list(topology.cpus())));
  return restricted(topology, *set);
}

struct Numa {
  bool on = true;
  int node = -1;  // asked for
};

Result<Numa> numa_of(const Topology& topology, const std::string& text) {
  if (text == "auto") return Numa{};
  if (text == "off") return Numa{.on = false};
  Numa numa;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), numa.node);
  const std::vector<int> nodes = topology.nodes();
  const bool number = !text.empty() && error == std::errc() && end == text.data() + text.size();
  if (!number || std::find(nodes.begin(), nodes.end(), numa.node) == nodes.end())
    return refused(
        "machine.numa",
        fmt::format("must be auto, off or a memory node whose CPUs may be used (here {}), not \"{}\"",
                    fmt::join(nodes, ", "), text));
  return numa;
}

CpuSet cpus_of(const std::vector<Topology::Core>& cores) {
  CpuSet all;
  for (const Topology::Core& core : cores) all.add(core.cpus);
  return all;
}

// One hardware thread of each core.
CpuSet first_threads(const std::vector<Topology::Core>& cores, int node) {
  std::vector<int> cpus;
  for (const Topology::Core& core : cores)
    if (core.node == node) cpus.push_back(core.cpus.first());
  return CpuSet(std::move(cpus));
}

// The plan while it is made.
struct Draft {
  MachinePlan plan;
  std::vector<Topology::Core> home;  // cores
  std::vector<Topology::Core> away;  // the others
};

void choose_home(Draft& d, const Topology& usable, const Numa& numa, const MachineWish& wish) {
  int node = numa.node;
  if (numa.on && node < 0 && wish.card && d.plan.nodes > 1) {
    node = node_of_card(usable, wish.card_bus_id);
    const std::vector<int> nodes = usable.nodes();
    if (node < 0) {
      d.plan.note = "the machine does not say which node the card is on";
    } else if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) {
      d.plan.note = fmt::format("the card is on node {}, none of whose CPUs may be used", node);
      node = -1;
    }
  }
  for (const Topology::Core& core : usable.cores)
    (node < 0 || core.node == node ? d.home : d.away).push_back(core);
  d.plan.home_node = d.plan.nodes > 1 ? node : -1;
}

// Others leave it that core, if they have another.
Status choose_engine_cpu(Draft& d, int cpu) {
  if (cpu < 0) return {};
  if (!d.plan.cpus.contains(cpu))
    return refused("machine.engine_cpu", fmt::format("must be one of the CPUs that may be used ({}), or -1 for "
                                                     "none, not {}",
                                                     cpu_list(d.plan.cpus), cpu));
  d.plan.engine = {cpu};
  const auto holds = [cpu](const Topology::Core& core) { return core.cpus.contains(cpu); };
  std::erase_if(d.away, holds);  // where nothing is left, sockets have home
  if (d.home.size() > 1) std::erase_if(d.home, holds);
  return {};
}

// Who asks for a node has others for the rest, as one server a node has; else what is not home is for the
// sockets.
void choose_io(Draft& d, const Numa& numa, int kept_cores) {
  std::vector<Topology::Core> io;
  if (numa.node < 0) io = std::move(d.away);
  if (kept_cores > 0) {
    io.resize(std::min(io.size(), size_t(kept_cores)));
    while (io.size() < size_t(kept_cores)) io.push_back(d.home.back()), d.home.pop_back();
  }
  d.plan.io = io.empty() ? cpus_of(d.home) : cpus_of(io);
}

// Members of a team are spread evenly over the cores; each stays on the node of its core, on one hardware
// thread a core while these suffice.
void place_team(Draft& d, const MachineWish& wish) {
  const auto cores = int(d.home.size());
  const double paid = wish.quota_cores > 0 ? std::floor(wish.quota_cores + 0.01) : cores;
  const int threads =
      wish.cpu_threads > 0 ? wish.cpu_threads : std::clamp(int(std::min<double>(paid, cores)), 1, cores);
  for (int i = 0; i < threads; ++i) {
    const int node = d.home[size_t(int64_t(i) * cores / threads)].node;
    d.plan.compute.push_back(threads > cores ? cpus_of(d.home) : first_threads(d.home, node));
  }
}

}  // namespace

Result<MachinePlan> plan_machine(const Topology& topology, const MachineWish& wish) {
  const MachineSettings& settings = wish.settings;
  const Result<Topology> usable = cpus_to_use(topology, settings.cpu_set);
  if (!usable) return usable.error();
  const Result<Numa> numa = numa_of(*usable, settings.numa);
  if (!numa) return numa.error();

  Draft d;
  d.plan.nodes = int(usable->nodes().size()), d.plan.cores = int(usable->cores.size());
  d.plan.cpus = usable->cpus();
  choose_home(d, *usable, *numa, wish);
  if (Status ok = choose_engine_cpu(d, settings.engine_cpu); !ok) return std::move(ok).error();
  const int spare = int(d.home.size()) - 1 + (numa->node < 0 ? int(d.away.size()) : 0);
  if (settings.io_threads < 0 || settings.io_threads > spare)
    return refused(
        "machine.io_threads",
        fmt::format("must be from 0 to {}, so that a core is left for the model{}, not {}", spare,
                    settings.engine_cpu >= 0 ? " beside machine.engine_cpu" : "", settings.io_threads));
  choose_io(d, *numa, settings.io_threads);
  d.plan.home = cpus_of(d.home);
  if (d.plan.engine.empty()) d.plan.engine = d.plan.home;
  if (!wish.card) place_team(d, wish);

  const bool several = numa->on && d.plan.nodes > 1 && (!wish.card || d.plan.home_node >= 0);
  d.plan.binds = several || settings.io_threads > 0 || settings.engine_cpu >= 0;
  // Tasks of an op go to whoever is free (tensor/cpu/team.h), so that no page has a thread that always reads
  // it: what serves all alike is to spread the pages.
  if (several && !wish.card && d.plan.home_node < 0)
    for (const Topology::Core& core : d.home)
      if (d.plan.interleave.empty() || d.plan.interleave.back() != core.node)
        d.plan.interleave.push_back(core.node);
  if (d.plan.interleave.size() == 1) d.plan.interleave.clear();
  return d.plan;
}

namespace {

std::string counted(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}
std::string named(const CpuSet& cpus) {
  return fmt::format("CPU{} {}", cpus.size() == 1 ? "" : "s", cpu_list(cpus));
}

}  // namespace

std::string describe(const MachinePlan& plan) {
  std::string out = fmt::format("{}, {}, {}", counted(plan.nodes, "memory node"), counted(plan.cores, "core"),
                                named(plan.cpus));
  if (!plan.compute.empty()) out += "; " + counted(int64_t(plan.compute.size()), "compute thread");
  if (!plan.binds) return out + "; no thread is bound" + (plan.note.empty() ? "" : ": " + plan.note);
  out += fmt::format("\n{} on {}", plan.compute.empty() ? "launches and pinned memory" : "model",
                     named(plan.home));
  if (plan.home_node >= 0) out += fmt::format(" (node {})", plan.home_node);
  if (plan.engine != plan.home) out += ", engine on " + named(plan.engine);
  out += ", network and text on " + named(plan.io);
  if (!plan.interleave.empty())
    out += fmt::format("; memory spread over nodes {}", fmt::join(plan.interleave, ", "));
  if (!plan.note.empty()) out += "; " + plan.note;
  return out;
}

std::vector<ThreadPlace> thread_places(const MachinePlan& plan) {
  if (!plan.binds) return {};
  std::vector<ThreadPlace> places{
      {"sluice-net", plan.io}, {"sluice-text", plan.io}, {"sluice-engine", plan.engine}};
  places.push_back({"sluice-executor", plan.compute.empty() ? plan.home : plan.compute[0]});
  for (size_t i = 1; i < plan.compute.size(); ++i)
    places.push_back({fmt::format("sluice-cpu-{}", i), plan.compute[i]});
  return places;
}

}  // namespace sluice
