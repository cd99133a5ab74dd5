// `sluice serve`: port first, so that /health answers at once; then the model, in a thread of its own, so that
// a signal ends a load too; then the line that says it is ready; then signals: what SIGHUP changes, and the
// orderly end.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <optional>

#include "base/check.h"
#include "base/crash_record.h"
#include "base/log.h"
#include "base/meter.h"
#include "base/usable_cores.h"
#include "cli/canary_config.h"
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

Error named(const Error& of_canary) {
  return {of_canary.code, fmt::format("the canary: {}{}{}", of_canary.field,
                                      of_canary.field.empty() ? "" : ": ", of_canary.message)};
}

[[noreturn]] void stop_loading(Server& server) {
  server.drain(now_ns());  // traces of what was refused meanwhile go out
  LOG(info, "stopped while loading");
  std::fflush(nullptr);
  _exit(0);
}

// A step of an engine that nobody waits for hangs when it takes longer.
int stuck_seconds(const Config& config) {
  constexpr int kUsual = 60;
  return config.watchdog_s != 0 ? config.watchdog_s : kUsual;
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
                 [this](Pool pool, const Config& read) {
                   wanted_.push_back({pool, read});
                 },
                 [this] { drop_canary(); }}) {
    for (const char* result : {"done", "failed"}) swaps(result);
  }

  // Loads what the settings say and serves it once all of it is there. Kills the process where a signal comes
  // first.
  Status begin() {
    const Result<std::optional<Config>> canary = canary_config(config_);
    if (!canary) return canary.error();
    auto model = load_now(Pool::stable, config_);
    if (!model.ok()) return model.error();
    stable_ = std::move(*model);
    place_threads();
    if (*canary) {
      auto second = load_now(Pool::canary, **canary);
      if (!second.ok()) return named(second.error());
      canary_ = std::move(*second);
    }
    if (Status recording = record_steps(); !recording) return recording;
    serve(config_.model);
    if (canary_ != nullptr) server_.serve_canary(canary_);
    return {};
  }

  void until_signal() {
    while (Signals::count() == 0) {
      if (auto loaded = keeper_.take()) end_load(std::move(*loaded));
      if (const ServedModel* stuck = stuck_canary_->exchange(nullptr)) give_up_canary(stuck);
      // What a SIGHUP changes while models are loaded is looked at when they are there. A load begins when what
      // was there has gone, so that its memory counts.
      if (keeper_.is_loading() || (!wanted_.empty() && keeper_.is_freeing()))
        Signals::wait();
      else if (!wanted_.empty())
        begin_load();
      else if (Signals::take_hangup())
        reload_.apply(stable_->engine(), canary_ != nullptr ? &canary_->engine() : nullptr);
      else
        Signals::wait();
    }
  }

  void drain() {
    LOG(info, "draining: no new requests; running answers have {} ms", config_.drain_timeout_ms);
    const TimeNs deadline = now_ns() + TimeNs(config_.drain_timeout_ms) * 1'000'000;
    keeper_.stop_gathering();
    served_->store(nullptr);  // what hangs now is left behind
    server_.drain(deadline);
    // Not by way of Engine::drain, which would wait for a step that hangs: the keeper does not.
    recorder_.reset();
    canary_.reset();
    stable_.reset();
  }

  ServedModel& stable() { return *stable_; }

 private:
  struct Wanted {
    Pool pool;
    Config config;
  };

  // With what is its own in a process of two models: threads, meters, memory that the other was promised.
  LoadOptions options_of(const Wanted& wanted) const {
    const bool is_canary = wanted.pool == Pool::canary;
    LoadOptions options = wanted.config.model;
    // Its config is read together with that of the server, so that one says whether there is the other.
    const auto canary = is_canary ? Result<std::optional<Config>>(wanted.config) : canary_config(wanted.config);
    const CpuShares shares = cpu_shares(wanted.config, canary.ok() ? *canary : std::nullopt, usable_cores());
    options.cpu.threads = is_canary ? shares.canary : shares.stable;
    options.beside = stable_ != nullptr;
    options.meters = {is_canary ? pool_name(Pool::canary) : "", is_canary || stable_ == nullptr};
    options.engine.promised_bytes = keeper_.promised_bytes();
    return options;
  }

  void start_load(const Wanted& wanted, Server* starting) {
    keeper_.load(
        options_of(wanted), progress_line(starting),
        wanted.pool == Pool::canary ? ModelKeeper::Priority::background : ModelKeeper::Priority::usual);
  }

  std::shared_ptr<ServedModel> keep(Pool pool, std::unique_ptr<ServedModel> model) {
    ServedModel* const kept = model.get();
    if (pool == Pool::stable) {
      served_->store(kept);
      return keeper_.keep(std::move(model), config_.watchdog_s, [served = served_, kept] {
        CHECK(served->load() != kept, "the engine's step ends (engine.watchdog_s)");
        LOG(error, "watchdog: {} has been replaced, and so the others go on", kept->path());
      });
    }
    // A canary that hangs is no reason to end the others.
    return keeper_.keep(std::move(model), stuck_seconds(config_), [stuck = stuck_canary_, kept] {
      kept->engine().give_up();
      stuck->store(kept);
      Signals::wake();
    });
  }

  Result<std::shared_ptr<ServedModel>> load_now(Pool pool, const Config& config) {
    start_load({pool, config}, &server_);
    while (keeper_.is_loading() && Signals::count() == 0) Signals::wait();
    // A load cannot be broken off in the middle, and of it nothing has been promised to anyone yet.
    if (keeper_.is_loading()) stop_loading(server_);
    auto loaded = keeper_.take();
    if (!loaded->ok()) return loaded->error();
    return keep(pool, std::move(**loaded));
  }

  void place_threads() {
    placed_ = machine_.settle(stable_->engine().info().device.threads);
    log_placed(placed_);
  }

  void serve(const LoadOptions& options) {
    LiveSources sources = live_sources(options, *stable_);
    sources.machine = placed_;
    server_.serve_model(stable_, std::move(sources));
  }

  Status record_steps() {
    if (config_.record_steps.empty()) return {};
    const std::string header = recorded_header(recorded_server(config_, *stable_, stable_->engine().info()));
    auto recording = StepRecorder::start(config_.record_steps, header, *stable_->engine().step_ledger());
    if (!recording) return recording.error();
    recorder_ = std::move(*recording);
    return {};
  }

  void begin_load() {
    loading_ = std::move(wanted_.front());
    wanted_.pop_front();
    start_load(*loading_, nullptr);
  }

  void end_load(Result<std::unique_ptr<ServedModel>> loaded) {
    const Wanted wanted = *std::exchange(loading_, std::nullopt);
    reload_.loaded(wanted.pool, loaded.ok());
    if (wanted.pool == Pool::canary)
      take_canary(std::move(loaded));
    else
      take_stable(wanted.config, std::move(loaded));
  }

  // New requests are the new one's from here on; the keeper frees the old one after its last answer.
  void take_stable(const Config& config, Result<std::unique_ptr<ServedModel>> loaded) {
    swaps(loaded.ok() ? "done" : "failed").add();
    if (!loaded.ok()) {
      const Error& why = loaded.error();
      LOG(error, "reload: {} goes on: {}{}{}", stable_->path(), why.field, why.field.empty() ? "" : ": ",
          why.message);
      return;
    }
    if (recorder_ != nullptr) LOG(warn, "reload: {} ends: its steps are one model's", config_.record_steps);
    recorder_.reset();
    const std::shared_ptr<ServedModel> old = std::exchange(stable_, keep(Pool::stable, std::move(*loaded)));
    old->engine().show(false);
    stable_->engine().show(true);
    place_threads();
    serve(config.model);
    LOG(info, "reload: {} is served now; answers that {} has begun go on with it", stable_->path(),
        old->path());
  }

  void take_canary(Result<std::unique_ptr<ServedModel>> loaded) {
    if (!loaded.ok()) {
      LOG(error, "reload: there is no canary: {}", named(loaded.error()).message);
      return;
    }
    canary_ = keep(Pool::canary, std::move(*loaded));
    server_.serve_canary(canary_);
    LOG(info, "reload: {} is a canary now", canary_->path());
  }

  void drop_canary() {
    server_.serve_canary(nullptr);
    canary_.reset();
  }

  // Also one that a SIGHUP has taken away, with answers that it had begun.
  void give_up_canary(const ServedModel* stuck) {
    if (stuck == canary_.get()) {
      LOG(error, "{} is no canary any more: its engine hangs", canary_->path());
      drop_canary();
    }
    server_.engine_hangs();
  }

  Server& server_;
  MachineBinding& machine_;
  ModelKeeper& keeper_;
  const Config config_;                           // as at start
  std::shared_ptr<ServedModel> stable_, canary_;  // canary: null: there is none
  // What watchdogs, which may outlive this, have said and are to know: a canary that hangs; the stable model.
  using Told = std::shared_ptr<std::atomic<const ServedModel*>>;
  const Told stuck_canary_ = std::make_shared<Told::element_type>(nullptr);
  const Told served_ = std::make_shared<Told::element_type>(nullptr);
  std::deque<Wanted> wanted_;  // to be loaded, in this order
  std::optional<Wanted> loading_;
  MachineReport placed_;
  std::unique_ptr<StepRecorder> recorder_;
  Reload reload_;
};

int dry_run(const Config& config, MachineBinding& machine) {
  machine.enter_load();
  Result<std::string> plan = describe_start(config);
  if (!plan) return failure(plan.error());
  fmt::print("{}{}", *plan, as_rows("machine", describe(machine.plan())));
  const Result<std::optional<Config>> canary = canary_config(config);
  if (!canary) return failure(canary.error());
  if (!*canary) return 0;
  plan = describe_start(**canary);
  if (!plan) return failure(named(plan.error()));
  fmt::print("canary: {}", *plan);
  return 0;
}

}  // namespace

int serve(const Config& config, const ServeOptions& options) {
  if (options.print_schema) return fmt::print("{}", print_schema()), 0;
  if (options.print_config) return fmt::print("{}", print_config(config)), 0;
  Result<MachineBinding> machine = MachineBinding::make(config);
  if (!machine) return failed_start(machine.error());
  if (options.dry_run) return dry_run(config, *machine);

  if (Status ok = arm_faults(options.faults, config.server.host); !ok) return failure(ok.error());
  std::signal(SIGPIPE, SIG_IGN);
  record_crashes();
  Signals signals(Signals::Watch::both);
  // Outlives all who hold a model.
  ModelKeeper keeper([&] { machine->enter_load(); }, stuck_seconds(config));
  Result<std::unique_ptr<Server>> started = Server::start(config.server);
  if (!started) return failure(started.error());
  Server& server = **started;

  Serving serving(server, *machine, keeper, config, options.reread);
  const TimeNs begin = now_ns();
  if (Status begun = serving.begin(); !begun) return failure(begun.error());
  log_decided(serving.stable().engine().info(), config, seconds(now_ns() - begin));
  print_ready(config, serving.stable(), server.port());

  serving.until_signal();
  serving.drain();
  if (keeper.is_loading()) stop_loading(server);
  LOG(info, "stopped");
  return 0;
}

}  // namespace sluice::cli
