// `sluice serve`: port first, so that /health answers at once; then the model, in a thread of its own, so that
// a signal ends a load too; then the line that says it is ready; then a signal, and the orderly end.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/crash_record.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/load_progress.h"
#include "cli/machine_binding.h"
#include "cli/machine_peaks.h"
#include "cli/memory_plan.h"
#include "cli/recorded_steps.h"
#include "cli/reload.h"
#include "cli/signals.h"
#include "cli/step_recorder.h"
#include "cli/watchdog.h"
#include "engine/make_engine.h"
#include "engine/served_model.h"
#include "observe/live.h"
#include "server/server.h"
#include "tensor/card_watch.h"

namespace sluice::cli {
namespace {

std::string url_of(const ServerConfig& server, int port) {
  const std::string& host = server.host;
  const char* scheme = server.tls_cert_file.empty() ? "http" : "https";
  return host.find(':') == std::string::npos ? fmt::format("{}://{}:{}", scheme, host, port)
                                             : fmt::format("{}://[{}]:{}", scheme, host, port);
}

void print_ready(const Config& config, ServedModel& model, int port) {
  const EngineInfo& info = model.engine().info();
  const std::string& name = config.server.model_name.empty() ? model.name() : config.server.model_name;
  const std::string device =
      info.device.threads > 0 ? fmt::format("{} threads", info.device.threads) : info.device.name;
  fmt::print("{} is served at {} (context {}, {}, {})\n", name, url_of(config.server, port), info.context,
             device, info.device.instruction_set);
  std::fflush(stdout);
}

bool is_loopback(const std::string& host) {
  return host == "127.0.0.1" || host == "localhost" || host == "::1";
}

// Before any other thread runs. A server that others can reach is never one that breaks on purpose.
Status arm_faults(const FaultPlan& plan, const std::string& host) {
  if (plan.rules.empty()) return {};
  if (!is_loopback(host))
    return Error{ErrorCode::kInvalidArgument,
                 "SLUICE_FAULTS is for tests, on 127.0.0.1 alone; unset it, or server.host"};
  LOG(warn, "SLUICE_FAULTS is set: this server fails on purpose, for tests. Unset it to serve anybody");
  faults::arm(plan);
  return {};
}

void log_decided(const EngineInfo& info, const Config& config, double load_s) {
  LOG(info,
      "loaded in {:.2f} s: weights {:.1f} MB, KV cache {:.1f} MB ({} blocks of {} tokens), activations {:.1f} "
      "MB",
      load_s, double(info.weight_bytes) / 1e6, double(info.kv_bytes) / 1e6, info.blocks, info.block_tokens,
      double(info.activation_bytes) / 1e6);
  if (config.server.api_keys.empty() && !is_loopback(config.server.host))
    LOG(warn, "listening on {} without an API key: anyone who reaches this port may use it",
        config.server.host);
}

void log_placed(const MachineReport& report) {
  std::string threads;
  for (const MachineReport::Threads& t : report.threads)
    threads += fmt::format("{}{}{} on {}", threads.empty() ? "" : ", ", t.name,
                           t.count > 1 ? fmt::format(" x{}", t.count) : "", t.cpus);
  for (size_t at = 0; at < report.plan.size();) {
    const size_t end = std::min(report.plan.find('\n', at), report.plan.size());
    LOG(info, "machine: {}", std::string_view(report.plan).substr(at, end - at));
    at = end + 1;
  }
  LOG(info, "machine: threads: {}", threads);
}

// Under a label, in the table of a dry run.
std::string as_rows(std::string_view label, std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out += fmt::format("  {:24}{}\n", label, text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    label = {};
  }
  return out;
}

RecordedServer recorded_server(const Config& config, const ServedModel& model, const EngineInfo& info) {
  const EngineConfig engine = settled(config.model.engine, info.device);
  RecordedServer server;
  server.model = model.name(), server.device = info.device.name, server.card = info.device.is_card();
  server.batching = describe(info.batching);
  server.max_sequences = engine.max_sequences, server.step_tokens = engine.step_tokens;
  server.mixed_prompt_tokens = engine.mixed_prompt_tokens;
  server.context = info.context, server.block_tokens = info.block_tokens, server.blocks = info.blocks;
  server.kv_bytes_per_token = int64_t(info.kv_bytes) / std::max(1, info.blocks * info.block_tokens);
  for (const LayerGroups::Group& group : layer_groups(info.spec).groups) server.windows.push_back(group.window);
  return server;
}

// What the server's numbers are told as shares of, and who watches the card.
LiveSources live_sources(const Config& config, ServedModel& model) {
  const DeviceInfo& device = model.engine().info().device;
  LiveSources sources;
  sources.limits.seats = settled(config.model.engine, device).max_sequences;
  if (device.is_card()) {
    const DeviceRates rates = model.device_rates();
    sources.limits.peaks = {rates.read_bytes_s, rates.matrix_ops_s};
    const std::string& named = config.model.device;  // auto, cuda, cuda:N
    const int number = named.starts_with("cuda:") ? std::atoi(named.c_str() + 5) : 0;
    if (std::shared_ptr<CardWatch> watch = watch_card(number))
      sources.read_cards = [watch] { return std::vector<CardReading>{watch->read()}; };
  } else if (device.threads > 0) {
    sources.limits.peaks = cached_peaks(device.threads);
    if (sources.limits.peaks.bytes_s == 0)
      sources.measure_peaks = [threads = device.threads] { return measured_peaks(threads); };
  }
  return sources;
}

int dry_run(const Config& config, MachineBinding& machine) {
  machine.enter_load();
  Result<std::string> plan = describe_start(config);
  if (!plan) return failure(plan.error());
  fmt::print("{}{}", *plan, as_rows("machine", describe(machine.plan())));
  return 0;
}

}  // namespace

int serve(const Config& config, const ServeOptions& options) {
  if (options.print_schema) return fmt::print("{}", print_schema()), 0;
  if (options.print_config) return fmt::print("{}", print_config(config)), 0;
  Result<MachineBinding> machine = MachineBinding::make(config);
  if (!machine) return failure(machine.error());
  if (options.dry_run) return dry_run(config, *machine);

  if (Status ok = arm_faults(options.faults, config.server.host); !ok) return failure(ok.error());
  std::signal(SIGPIPE, SIG_IGN);
  record_crashes();
  Signals signals(Signals::Watch::both);
  Result<std::unique_ptr<Server>> started = Server::start(config.server);
  if (!started) return failure(started.error());
  Server& server = **started;

  const TimeNs begin = now_ns();
  std::optional<Result<std::unique_ptr<ServedModel>>> loaded;
  std::atomic<bool> load_done{false};
  std::thread loader([&] {
    machine->enter_load();
    LoadProgressLine progress;
    loaded = load_model(config.model, [&](const std::string& phase, double fraction) {
      server.set_loading(phase, fraction);
      progress.show(phase, fraction);
    });
    load_done.store(true);
    Signals::wake();
  });
  while (!load_done.load() && Signals::count() == 0) Signals::wait();
  if (!load_done.load()) {
    // A load cannot be broken off in the middle, and nothing has been promised to anyone yet.
    LOG(info, "stopped while loading");
    std::fflush(stdout);
    _exit(0);
  }
  loader.join();
  if (!loaded->ok()) return failure(loaded->error());

  ServedModel& model = ***loaded;
  std::unique_ptr<StepRecorder> recorder;
  if (!config.record_steps.empty()) {
    const std::string header = recorded_header(recorded_server(config, model, model.engine().info()));
    auto recording = StepRecorder::start(config.record_steps, header, *model.engine().step_ledger());
    if (!recording) return failure(recording.error());
    recorder = std::move(*recording);
  }
  LiveSources sources = live_sources(config, model);
  sources.machine = machine->settle(model.engine().info().device.threads);
  log_placed(sources.machine);
  server.set_live_sources(std::move(sources));
  server.serve_model(model);
  log_decided(model.engine().info(), config, seconds(now_ns() - begin));
  print_ready(config, model, server.port());

  const Watchdog watchdog(model.engine(), config.watchdog_s);
  Reload reload(config, options.reread,
                [&](const TrafficSettings& settings) { return server.set_traffic(settings); });
  while (Signals::count() == 0) {
    if (Signals::take_hangup())
      reload.apply(model.engine());
    else
      Signals::wait();
  }
  LOG(info, "draining: no new requests; running answers have {} ms", config.drain_timeout_ms);
  const TimeNs deadline = now_ns() + TimeNs(config.drain_timeout_ms) * 1'000'000;
  model.engine().stop_gathering();
  server.drain(deadline);
  model.engine().drain(deadline);
  recorder.reset();
  LOG(info, "stopped");
  started->reset();  // the server refers to the model
  return 0;
}

}  // namespace sluice::cli
