#include "server/network.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <ctime>
#include <thread>

#include "base/allocation_budget.h"
#include "base/check.h"
#include "base/faults.h"
#include "base/log.h"
#include "server/connection.h"
#include "server/connection_meters.h"
#include "server/limits.h"

namespace sluice {

namespace asio = boost::asio;

Loop::Loop(std::shared_ptr<NetworkShared> shared_state)
    : owner(std::move(shared_state)), shared(*owner), scratch(64 << 10) {
  buffers.reserve(limits::kKeptBuffers);
}

void Loop::accept() {
  acceptor.async_accept(context, [this](boost::system::error_code ec, Socket socket) {
    if (ec == asio::error::operation_aborted || !acceptor.is_open()) return;
    if (ec) {
      // Out of descriptors, most likely: the backlog holds the client until one is free.
      accept_retry.expires_after(std::chrono::milliseconds(50));
      accept_retry.async_wait([this](boost::system::error_code e) {
        if (!e && acceptor.is_open()) accept();
      });
      return;
    }
    try {
      take_in(std::move(socket));
    } catch (const std::exception& e) {
      LOG(error, "a connection was not taken in: {}", e.what());
    }
    accept();
  });
}

void Loop::take_in(Socket socket) {
  boost::system::error_code ignored;
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto remote = socket.remote_endpoint(ignored);
  const uint64_t address = ignored ? 0 : AddressLimit::key_of(remote.address());
  const bool welcome = shared.addresses.enter(address, shared.config.max_connections_per_address);
  std::shared_ptr<Connection> connection;
  try {
    connection = std::make_shared<Connection>(shared_from_this(), std::move(socket), welcome ? address : 0);
    if (faults::armed() && faults::met_at(Fault::alloc_failure, {4})) [[unlikely]]
      throw std::bad_alloc();
    connections.insert(connection);
  } catch (...) {  // what it was counted in gets it back
    if (connection)
      connection->close();
    else if (welcome)
      shared.addresses.leave(address);
    throw;
  }
  if (!welcome)
    connection->refuse(429, "Too many connections from this address.");
  else if (shared.connections.load(std::memory_order_relaxed) > shared.config.max_connections)
    connection->refuse(503, "Too many connections.");
  else
    connection->start();
}

void Loop::tick() {
  timer.expires_after(std::chrono::milliseconds(limits::kTickMs));
  timer.async_wait([this](boost::system::error_code ec) {
    if (ec || stopped.load(std::memory_order_relaxed)) return;
    tick();  // first: nothing that fails below may end it
    count_costs();
    const TimeNs now = now_ns();
    std::vector<std::shared_ptr<Connection>> late;
    for (const auto& c : connections) {
      if ((c->deadline_ != 0 && now >= c->deadline_) || (c->write_deadline_ != 0 && now > c->write_deadline_))
        late.push_back(c);
    }
    for (const auto& c : late) c->expire(now);
  });
}

// Once a tick: counters that all network threads share are too dear for each write.
void Loop::count_costs() {
  // Anew: two threads that told of theirs at the same time may have done so in the wrong order.
  connection_meters().open.set(shared.connections.load(std::memory_order_relaxed));
  connection_meters().writes.add(std::exchange(writes, 0));
  const uint64_t all = thread_allocations();
  connection_meters().allocations.add(all - std::exchange(allocations, all));
}

void Loop::take_buffer(std::string& buffer) {
  if (!shared.config.pooled_io || buffer.capacity() > std::string().capacity()) return;
  if (buffers.empty()) {
    buffer.reserve(limits::kFreshBufferBytes);
  } else {
    buffer.swap(buffers.back());
    buffers.pop_back();
  }
}

void Loop::give_buffer(std::string& buffer) {
  buffer.clear();
  const size_t capacity = buffer.capacity();
  if (capacity <= std::string().capacity()) return;
  if (shared.config.pooled_io && capacity <= limits::kKeptBufferBytes && buffers.size() < limits::kKeptBuffers)
    buffers.emplace_back().swap(buffer);
  else
    std::string().swap(buffer);
}

namespace {

template <typename T>
struct WakeAllocator {
  using value_type = T;
  explicit WakeAllocator(WakeMemory& wake_memory) : memory(&wake_memory) {}
  template <typename U>
  WakeAllocator(const WakeAllocator<U>& other) : memory(other.memory) {}
  T* allocate(size_t count) const {
    CHECK(count * sizeof(T) <= sizeof memory->bytes);
    return reinterpret_cast<T*>(memory->bytes);
  }
  void deallocate(T*, size_t) const {}
  template <typename U>
  bool operator==(const WakeAllocator<U>& other) const {
    return memory == other.memory;
  }
  WakeMemory* memory;
};

}  // namespace

void Loop::wake(std::shared_ptr<Connection> connection) {
  if (stopped.load(std::memory_order_acquire)) return;
  if (!shared.config.pooled_io) {
    asio::post(context, [connection = std::move(connection)] { connection->run_wake(); });
    return;
  }
  Connection* c = connection.get();
  if (c->queued_.exchange(true, std::memory_order_acq_rel)) return;
  c->woken_ref_ = std::move(connection);
  c->woken_next_ = woken.load(std::memory_order_relaxed);
  while (
      !woken.compare_exchange_weak(c->woken_next_, c, std::memory_order_release, std::memory_order_relaxed)) {
  }
  if (wake_posted.exchange(true, std::memory_order_acq_rel)) return;
  asio::post(context, asio::bind_allocator(WakeAllocator<std::byte>(wake_memory), [this] { run_woken(); }));
}

void Loop::run_woken() {
  // An exchange, not a store: it reads what the last waker wrote, so that waker's push is seen below.
  wake_posted.exchange(false, std::memory_order_acq_rel);
  Connection* c = woken.exchange(nullptr, std::memory_order_acquire);
  while (c != nullptr) {
    auto connection = std::move(c->woken_ref_);
    Connection* next = c->woken_next_;
    c->queued_.store(false, std::memory_order_release);
    connection->run_wake();
    c = next;
  }
}

void Loop::note_work() {
  if (turn_noted) return;
  // Behind the handlers of all sockets that the last look found ready.
  asio::post(context, [this] {
    turn_noted = false;
    shared.handler->turn_ended();
  });
  turn_noted = true;  // not where there was no memory for the above
}

void Loop::close_all() {
  std::vector<std::shared_ptr<Connection>> all(connections.begin(), connections.end());
  for (const auto& c : all) c->left("server_stopped");
}

const std::string& Loop::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_second) {
    date_second = now;
    std::tm utc{};
    gmtime_r(&now, &utc);
    char text[40];
    date_text.assign(text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc));
  }
  return date_text;
}

namespace {

// Idle connections each hold a descriptor; the soft limit of 1024 is far too low.
void raise_descriptor_limit(int connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = rlim_t(connections) + 256;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < wanted) {
    LOG(warn, "the limit of open files ({}) is below max_connections ({}): raise it with ulimit -n",
        limit.rlim_cur, connections);
  }
}

class NetworkImpl final : public Network {
 public:
  ~NetworkImpl() override { stop(); }

  Status open(const ServerConfig& config, HttpHandler& handler);
  int port() const override { return port_; }
  int connections() const override { return shared_->connections.load(); }
  int busy() const override { return shared_->busy.load(); }
  void drain() override;
  void wake_exchanges() override { for_each_connection(&Connection::run_wake); }
  void shut_down_exchanges() override { for_each_connection(&Connection::shut_down); }
  void stop() override;

 private:
  void for_each_connection(void (Connection::*call)());
  Status bind_all(const asio::ip::tcp::endpoint& endpoint);
  Status listen_on(Loop::Acceptor& acceptor, const asio::ip::tcp::endpoint& endpoint, bool shared_port);

  const std::shared_ptr<NetworkShared> shared_ = std::make_shared<NetworkShared>();
  std::vector<std::shared_ptr<Loop>> loops_;
  std::vector<std::thread> threads_;
  int port_ = 0;
};

// Handlers catch their own exceptions; one that slips through (no memory for a closure) must not end the
// process.
void run_loop(Loop& loop) {
  for (;;) {
    try {
      loop.context.run();
      return;
    } catch (const std::exception& e) {
      LOG(error, "network thread: {}", e.what());
    }
  }
}

Error io_error(const ServerConfig& config, const std::string& why, const char* field = "port") {
  return Error{ErrorCode::kIo, fmt::format("cannot listen on {}:{}: {}", config.host, config.port, why), field};
}

Status NetworkImpl::listen_on(Loop::Acceptor& acceptor, const asio::ip::tcp::endpoint& endpoint,
                              bool shared_port) {
  boost::system::error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(Loop::Acceptor::reuse_address(true), ec);
  if (!ec && endpoint.address().is_v6()) {
    boost::system::error_code ignored;
    acceptor.set_option(asio::ip::v6_only(false), ignored);
  }
  if (!ec && shared_port) {
    const int on = 1;
    if (setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0) {
      ec.assign(errno, boost::system::system_category());
    }
  }
  // Accepted sockets inherit it. Without a bound the kernel lets megabytes pile up for each client that does
  // not read.
  if (!ec) acceptor.set_option(Loop::Acceptor::send_buffer_size(limits::kSendBufferBytes), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(4096, ec);
  if (ec == asio::error::address_in_use)
    return io_error(shared_->config,
                    ec.message() + "; end what has it, or give another port (0: any free one)");
  if (ec == boost::system::errc::address_not_available)
    return io_error(shared_->config, "this machine has no such address", "host");
  if (ec) return io_error(shared_->config, ec.message());
  return {};
}

Status NetworkImpl::bind_all(const asio::ip::tcp::endpoint& endpoint) {
  asio::ip::tcp::endpoint at = endpoint;
  const bool several = loops_.size() > 1;
  if (several) {
    // SO_REUSEPORT would also share the port with another server of the same user; a bind without it says so.
    asio::io_context context;
    Loop::Acceptor probe(context);
    if (Status status = listen_on(probe, at, false); !status.ok()) return status;
    at = probe.local_endpoint();
  }
  for (auto& loop : loops_) {
    if (Status status = listen_on(loop->acceptor, at, several); !status.ok()) return status;
    at = loop->acceptor.local_endpoint();
  }
  port_ = at.port();
  return {};
}

Status NetworkImpl::open(const ServerConfig& config, HttpHandler& handler) {
  connection_meters();
  shared_->config = config;
  shared_->handler = &handler;
  if (!config.tls_cert_file.empty() || !config.tls_key_file.empty()) {
    auto tls = TlsContext::create(config.tls_cert_file, config.tls_key_file);
    if (!tls.ok()) return tls.error();
    shared_->tls = std::move(tls).value();
  }
  raise_descriptor_limit(config.max_connections);
  if (config.port < 0 || config.port > 65535) return io_error(config, "a port is 0 to 65535");
  boost::system::error_code ec;
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  const std::string host = config.host.empty() ? "0.0.0.0" : config.host;
  const auto found = resolver.resolve(host, std::to_string(config.port), asio::ip::tcp::resolver::passive, ec);
  if (ec || found.empty()) return io_error(config, ec ? ec.message() : "no such host", "host");
  for (int i = 0; i < std::max(1, config.network_threads); ++i) {
    loops_.push_back(std::make_shared<Loop>(shared_));
  }
  if (Status status = bind_all(found.begin()->endpoint()); !status.ok()) return status;
  for (auto& loop : loops_) {
    loop->accept();
    loop->tick();
    threads_.emplace_back([loop] { run_loop(*loop); });
    pthread_setname_np(threads_.back().native_handle(), "sluice-net");
  }
  return {};
}

void NetworkImpl::drain() {
  shared_->draining.store(true);
  for (auto& loop : loops_) {
    asio::post(loop->context, [raw = loop.get()] {
      std::vector<std::shared_ptr<Connection>> all(raw->connections.begin(), raw->connections.end());
      for (const auto& c : all) c->drain();
    });
  }
}

// On their threads, soon.
void NetworkImpl::for_each_connection(void (Connection::*call)()) {
  for (auto& loop : loops_) {
    asio::post(loop->context, [raw = loop.get(), call] {
      std::vector<std::shared_ptr<Connection>> all(raw->connections.begin(), raw->connections.end());
      for (const auto& c : all) (c.get()->*call)();
    });
  }
}

void NetworkImpl::stop() {
  for (auto& loop : loops_) {
    asio::post(loop->context, [raw = loop.get()] {
      boost::system::error_code ignored;
      raw->acceptor.close(ignored);
      raw->timer.cancel();
      raw->accept_retry.cancel();
      raw->close_all();
      raw->stopped.store(true, std::memory_order_release);
    });
  }
  // With every socket and timer closed the loops run dry by themselves.
  for (auto& thread : threads_) thread.join();
  for (auto& loop : loops_) {
    // Work posted too late holds connections, which hold the loop.
    loop->context.restart();
    loop->context.poll();
    loop->run_woken();
  }
  threads_.clear();
  loops_.clear();
}

}  // namespace

Result<std::unique_ptr<Network>> Network::start(const ServerConfig& config, HttpHandler& handler) {
  auto network = std::make_unique<NetworkImpl>();
  if (Status status = network->open(config, handler); !status.ok()) return std::move(status).error();
  return std::unique_ptr<Network>(std::move(network));
}

}  // namespace sluice
