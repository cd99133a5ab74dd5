#include "server/server.h"

#include <thread>

#include "base/log.h"
#include "server/network.h"
#include "server/router.h"

namespace sluice {

namespace {

class ServerImpl final : public Server {
 public:
  ServerImpl(const ServerConfig& config, ApiKeys keys, std::unique_ptr<Tracer> tracer)
      : router_(config, std::move(keys), std::move(tracer)) {}
  ~ServerImpl() override { drain(now_ns()); }

  Status open(const ServerConfig& config) {
    auto network = Network::start(config, router_);
    if (!network.ok()) return network.error();
    network_ = std::move(network).value();
    return {};
  }

  int port() const override { return network_->port(); }
  void set_loading(const std::string& phase, double fraction) override { router_.set_loading(phase, fraction); }
  void serve_model(std::shared_ptr<ServedModel> model, LiveSources sources) override {
    router_.serve_model(std::move(model), std::move(sources));
  }
  void serve_canary(std::shared_ptr<ServedModel> model) override { router_.serve_canary(std::move(model)); }
  void engine_hangs() override { network_->wake_exchanges(); }
  Status set_traffic(const TrafficSettings& settings) override { return router_.set_traffic(settings); }

  void drain(TimeNs deadline) override {
    if (drained_ || !network_) return;
    drained_ = true;
    router_.set_draining();
    network_->drain();
    wait_idle(deadline);
    if (network_->busy() > 0) {
      LOG(warn, "{} requests are cut short by the shutdown", network_->busy());
      network_->shut_down_exchanges();
      wait_idle(now_ns() + kLastWordsNs);
    }
    router_.stop_text();
    network_->stop();
    router_.stop_traces();
  }

 private:
  static constexpr TimeNs kLastWordsNs = 500'000'000;  // for the errors that tell clients of it

  void wait_idle(TimeNs deadline) const {
    while (network_->busy() > 0 && now_ns() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  Router router_;
  std::unique_ptr<Network> network_;
  bool drained_ = false;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start(const ServerConfig& config) {
  auto keys = ApiKeys::create(config.api_keys);
  if (!keys.ok()) return keys.error();
  if (keys->any_plain())
    LOG(warn, "an API key is configured as it is; write \"NAME=sha256:\" and its SHA-256 instead");
  if (Status status = Cors::check(config.cors_origins); !status.ok()) return std::move(status).error();
  if (Status status = check_traffic(config.traffic); !status.ok()) return std::move(status).error();
  auto tracer = Tracer::create(config.tracing);
  if (!tracer.ok()) return tracer.error();
  auto server = std::make_unique<ServerImpl>(config, std::move(keys).value(), std::move(tracer).value());
  if (Status status = server->open(config); !status.ok()) return std::move(status).error();
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace sluice
