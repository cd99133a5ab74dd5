#include "cli/machine_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "base/usable_cores.h"
#include "tensor/card_watch.h"

namespace sluice::cli {
namespace {

// Members of the team are told together.
std::string told_name(const std::string& thread) {
  return thread.starts_with("sluice-cpu-") ? "sluice-cpu" : thread;
}

// Of those that each engine has for itself.
bool is_engines(const std::string& thread) {
  for (const char* name : {"sluice-engine", "sluice-executor", "sluice-masks", "sluice-kv-disk"})
    if (thread == name) return true;
  return thread.starts_with("sluice-cpu-");
}

void add(MachineReport& report, MachineReport::Threads thread) {
  for (MachineReport::Threads& known : report.threads)
    if (known.name == thread.name && known.cpus == thread.cpus && known.refused == thread.refused)
      return void(known.count += thread.count);
  report.threads.push_back(std::move(thread));
}

void warn(const std::string& who, const Status& status) {
  if (!status) LOG(warn, "machine: {}: {}; the kernel places it", who, status.error().message);
}

}  // namespace

MachineBinding::MachineBinding(const Config& config, Topology topology)
    : device_(config.model.device), topology_(std::move(topology)) {
  wish_.settings = config.machine;
  wish_.cpu_threads = config.model.cpu.threads;
  wish_.quota_cores = quota_cores();
}

Status MachineBinding::replan() {
  Result<MachinePlan> plan = plan_machine(topology_, wish_);
  if (!plan) return plan.error();
  plan_ = std::move(*plan);
  return {};
}

Result<MachineBinding> MachineBinding::make(const Config& config) {
  Result<Topology> topology = read_topology();
  if (!topology) return std::move(topology).error();
  MachineBinding binding(config, std::move(*topology));
  if (Status ok = binding.replan(); !ok) return std::move(ok).error();
  if (!config.machine.cpu_set.empty() && !binding.topology_.described)
    warn("this process", bind_thread(0, binding.plan_.cpus));
  return binding;
}

void MachineBinding::enter_load() {
  engines_before_.clear();
  for (const NamedThread& thread : threads_of_process())
    if (is_engines(thread.name)) engines_before_.push_back(thread.id);
  std::sort(engines_before_.begin(), engines_before_.end());
  if (device_ == "auto" || device_.starts_with("cuda")) {
    wish_.card_bus_id = card_bus_id(device_.starts_with("cuda:") ? std::atoi(device_.c_str() + 5) : 0);
    wish_.card = device_ != "auto" || !wish_.card_bus_id.empty();
  }
  if (Status ok = replan(); !ok) return warn("the card's place", ok);
  if (!plan_.binds || topology_.described) return;
  warn("the model", bind_thread(0, plan_.home));
  if (!plan_.interleave.empty()) warn("the model's memory", interleave_memory(plan_.interleave));
}

MachineReport MachineBinding::settle(int cpu_threads) {
  // Of a card that turned out not to run the model, the plan was another one.
  wish_.card = cpu_threads == 0;
  if (cpu_threads > 0) wish_.cpu_threads = cpu_threads;
  warn("the plan", replan());
  MachineReport report;
  report.plan = describe(plan_);
  if (topology_.described) report.plan += "\nnot this machine, by hwloc's environment: nothing is bound";
  const std::vector<ThreadPlace> places = thread_places(plan_);
  for (const NamedThread& thread : threads_of_process()) {
    if (!thread.name.starts_with("sluice-")) continue;
    if (std::binary_search(engines_before_.begin(), engines_before_.end(), thread.id)) continue;
    const auto place =
        std::find_if(places.begin(), places.end(), [&](const ThreadPlace& p) { return p.name == thread.name; });
    Status bound;
    if (place != places.end() && !topology_.described) bound = bind_thread(thread.id, place->cpus);
    add(report, {told_name(thread.name), 1, cpu_list(allowed_cpus(thread.id)),
                 bound.ok() ? "" : bound.error().message});
    warn(thread.name, bound);
  }
  return report;
}

Status bind_to_machine(const Config& config) {
  Config whole = config;  // no thread of the engine or of sockets is placed here, so no core is kept for one
  whole.machine.io_threads = 0;
  whole.machine.engine_cpu = -1;
  Result<MachineBinding> binding = MachineBinding::make(whole);
  if (!binding) return std::move(binding).error();
  binding->enter_load();
  return {};
}

}  // namespace sluice::cli
