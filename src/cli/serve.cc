// `sluice serve`: port first, so that /health answers at once; then the model, in a thread of its own, so that
// a signal ends a load too; then the line that says it is ready; then signals: what SIGHUP changes, and the
// orderly end.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "base/crash_record.h"
#include "base/log.h"
#include "base/meter.h"
#include "cli/commands.h"
#include "cli/load_progress.h"
#include "cli/machine_binding.h"
#include "cli/machine_peaks.h"
#include "cli/memory_plan.h"
#include "cli/model_keeper.h"
#include "cli/recorded_steps.h"
#include "cli/reload.h"
#include "cli/signals.h"
#include "cli/step_recorder.h"
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
LiveSources live_sources(const LoadOptions& options, ServedModel& model) {
  const DeviceInfo& device = model.engine().info().device;
  LiveSources sources;
  sources.limits.seats = settled(options.engine, device).max_sequences;
  if (device.is_card()) {
    const DeviceRates rates = model.device_rates();
    sources.limits.peaks = {rates.read_bytes_s, rates.matrix_ops_s};
    const std::string& named = options.device;  // auto, cuda, cuda:N
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

Counter& swaps(const char* result) {
  return meter::counter("sluice_model_swaps_total",
                        "Models loaded to take the place of the one that is served.",
                        fmt::format("result=\"{}\"", result));
}

LoadListener progress_line(Server* starting) {
  return [starting, line = std::make_shared<LoadProgressLine>()](const std::string& phase, double fraction) {
    if (starting != nullptr) starting->set_loading(phase, fraction);
    line->show(phase, fraction);
  };
}

// From ready to the signal that ends it. Main thread.
class Serving {
 public:
  Serving(Server& server, MachineBinding& machine, ModelKeeper& keeper, const Config& config,
          std::function<Result<Config>()> reread)
      : server_(server),
        machine_(machine),
        keeper_(keeper),
        config_(config),
        reload_(config, std::move(reread),
                {[this](const TrafficSettings& settings) { return server_.set_traffic(settings); },
                 [this](const LoadOptions& options) { begin_swap(options); }}) {
    for (const char* result : {"done", "failed"}) swaps(result);
  }

  Status begin(std::unique_ptr<ServedModel> model) {
    if (!config_.record_steps.empty()) {
      const std::string header = recorded_header(recorded_server(config_, *model, model->engine().info()));
      auto recording = StepRecorder::start(config_.record_steps, header, *model->engine().step_ledger());
      if (!recording) return recording.error();
      recorder_ = std::move(*recording);
    }
    model_ = keeper_.keep(std::move(model), config_.watchdog_s);
    serve(config_.model);
    return {};
  }

  void until_signal() {
    while (Signals::count() == 0) {
      if (auto loaded = keeper_.take()) end_swap(std::move(*loaded));
      keeper_.free_unused();
      // What a SIGHUP changes while a model is loaded is looked at when it is there.
      if (!keeper_.is_loading() && Signals::take_hangup())
        reload_.apply(model_->engine());
      else
        Signals::wait();
    }
  }

  void drain() {
    LOG(info, "draining: no new requests; running answers have {} ms", config_.drain_timeout_ms);
    const TimeNs deadline = now_ns() + TimeNs(config_.drain_timeout_ms) * 1'000'000;
    model_->engine().stop_gathering();
    server_.drain(deadline);
    model_->engine().drain(deadline);
    recorder_.reset();
  }

  ServedModel& model() { return *model_; }

 private:
  void serve(const LoadOptions& options) {
    LiveSources sources = live_sources(options, *model_);
    sources.machine = machine_.settle(model_->engine().info().device.threads);
    log_placed(sources.machine);
    server_.serve_model(model_, std::move(sources));
  }

  void begin_swap(const LoadOptions& options) {
    next_ = options;
    next_.beside = true;
    next_.meters.gauges = false;
    keeper_.load(next_, progress_line(nullptr));
  }

  // New requests are the new one's from here on; the keeper frees the old one after its last answer.
  void end_swap(Result<std::unique_ptr<ServedModel>> loaded) {
    reload_.swapped(loaded.ok());
    swaps(loaded.ok() ? "done" : "failed").add();
    if (!loaded.ok()) {
      const Error& why = loaded.error();
      LOG(error, "reload: {} goes on: {}{}{}", model_->path(), why.field, why.field.empty() ? "" : ": ",
          why.message);
      return;
    }
    if (recorder_ != nullptr) LOG(warn, "reload: {} ends: its steps are one model's", config_.record_steps);
    recorder_.reset();
    const std::shared_ptr<ServedModel> old =
        std::exchange(model_, keeper_.keep(std::move(*loaded), config_.watchdog_s));
    old->engine().show(false);
    model_->engine().show(true);
    serve(next_);
    LOG(info, "reload: {} is served now; answers that {} has begun go on with it", model_->path(), old->path());
  }

  Server& server_;
  MachineBinding& machine_;
  ModelKeeper& keeper_;
  const Config config_;  // as at start
  std::shared_ptr<ServedModel> model_;
  LoadOptions next_;  // of the swap that is under way
  std::unique_ptr<StepRecorder> recorder_;
  Reload reload_;
};

[[noreturn]] void stop_loading() {
  LOG(info, "stopped while loading");
  std::fflush(stdout);
  _exit(0);
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
  ModelKeeper keeper([&] { machine->enter_load(); });  // outlives all who hold a model
  Result<std::unique_ptr<Server>> started = Server::start(config.server);
  if (!started) return failure(started.error());
  Server& server = **started;

  Serving serving(server, *machine, keeper, config, options.reread);
  const TimeNs begin = now_ns();
  keeper.load(config.model, progress_line(&server));
  while (keeper.is_loading() && Signals::count() == 0) Signals::wait();
  // A load cannot be broken off in the middle, and of it nothing has been promised to anyone yet.
  if (keeper.is_loading()) stop_loading();
  auto loaded = keeper.take();
  if (!loaded->ok()) return failure(loaded->error());
  if (Status begun = serving.begin(std::move(**loaded)); !begun) return failure(begun.error());
  log_decided(serving.model().engine().info(), config, seconds(now_ns() - begin));
  print_ready(config, serving.model(), server.port());

  serving.until_signal();
  serving.drain();
  if (keeper.is_loading()) stop_loading();
  LOG(info, "stopped");
  return 0;
}

}  // namespace sluice::cli
