// One client's socket: reads requests one after the other, hands each to the handler, writes the answer.
// Everything but `wake` and `post` runs on the loop's thread. Internal to network.cc and connection.cc.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/address_limit.h"
#include "server/http.h"
#include "server/http_parser.h"
#include "server/server.h"
#include "server/tls.h"

namespace sluice {

class Connection;

// Memory of a message to a loop of which there is one at a time, so that the engine's thread allocates nothing
// when it wakes connections. (Asio frees a message before it runs it, and has memory of its own for those that
// come from the loop's thread alone.)
struct WakeMemory {
  alignas(std::max_align_t) std::byte bytes[128];
};

// What the network threads share.
struct NetworkShared {
  ServerConfig config;
  HttpHandler* handler = nullptr;
  std::shared_ptr<const TlsContext> tls;  // null: plain HTTP
  AddressLimit addresses;
  std::atomic<int> connections{0};
  std::atomic<int> busy{0};
  std::atomic<size_t> body_bytes{0};
  std::atomic<bool> draining{false};
};

// An event loop with its thread's state.
struct Loop : std::enable_shared_from_this<Loop> {
  using Tcp = boost::asio::ip::tcp;
  using Executor = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<Tcp, Executor>;
  using Acceptor = boost::asio::basic_socket_acceptor<Tcp, Executor>;
  using Timer =
      boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                        boost::asio::wait_traits<std::chrono::steady_clock>, Executor>;

  explicit Loop(std::shared_ptr<NetworkShared> shared_state);
  void accept();
  void take_in(Socket socket);
  void tick();
  void count_costs();
  void run_woken();
  void note_work();  // something is being handled: turn_ended will be called behind what else is ready now
  void wake(std::shared_ptr<Connection> connection);  // any thread
  void close_all();
  const std::string& date();  // value of the Date header, made once a second

  // Memory of what is to be sent. A connection holds a buffer while there is something in it, so that a few
  // warm ones serve any number of connections, and a frame allocates nothing. Without ServerConfig::pooled_io
  // each is made anew. A buffer that is held already stays.
  void take_buffer(std::string& buffer);
  void give_buffer(std::string& buffer);  // leaves it empty

  // Owned together with the network: engine streams may hold connections, and so this, for longer.
  const std::shared_ptr<NetworkShared> owner;
  NetworkShared& shared;
  boost::asio::io_context context{1};
  Acceptor acceptor{context};
  Timer timer{context};
  Timer accept_retry{context};
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::vector<char> scratch;
  std::vector<std::string> buffers;         // that nobody holds
  std::string dropped;                      // frames of an answer that nobody takes any more
  std::atomic<Connection*> woken{nullptr};  // stack of those to wake, pushed by any thread
  std::atomic<bool> wake_posted{false};
  WakeMemory wake_memory;  // of the message that wake_posted stands for
  std::atomic<bool> stopped{false};
  bool turn_noted = false;
  uint64_t writes = 0, allocations = 0;  // since the last tick; in all, at the last tick
  std::string date_text;
  int64_t date_second = 0;
};

class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  // `address`: what AddressLimit has counted it under; left when it closes.
  Connection(std::shared_ptr<Loop> loop, Loop::Socket socket, uint64_t address);
  ~Connection() override;
  void start();
  void refuse(int status, const char* message);  // in place of start: over the limit of connections
  void expire(TimeNs now);
  void drain();      // closes it between two requests; before its first it may still ask
  void shut_down();  // tells the listener
  void close();
  void run_wake();

  void wake() override;
  void post(std::function<void()> work) override;
  bool gone() const override { return gone_.load(std::memory_order_relaxed); }
  void listen(std::shared_ptr<HttpListener> listener) override { listener_ = std::move(listener); }
  void add_header(std::string_view name, std::string_view value) override;
  void respond(HttpResponse response) override;
  void begin(HttpResponse head) override;
  std::string& frames() override;
  void flush() override;
  size_t unsent() const override {
    return out_.size() - sent_ + (chunk_.empty() ? 0 : chunk_.size() - kChunkRoom);
  }
  void end(bool complete) override;

 private:
  friend struct Loop;
  enum class State : uint8_t {
    idle,       // between requests
    head,       // part of a request head is in
    body,       // the head is in
    answering,  // the handler has the request
    closing,    // the answer is made; close once it is sent
    linger,     // sent; reading on until the client closes
    closed,
  };

  // What a chunk's head may take: frames are made behind it, and sent from where they lie.
  static constexpr size_t kChunkRoom = 18;

  // A fault in one answer, no memory for instance, ends that connection, and nothing else.
  template <typename Work>
  void guarded(Work&& work);
  void pass_deadline(TimeNs now);
  ssize_t receive(char* data, size_t bytes);
  ssize_t transmit(const char* data, size_t bytes);
  void arm_read();
  void arm_write();
  void on_readable();
  void take(std::string_view bytes);
  void parse(std::string_view& bytes);
  void dispatch();
  void fail(int status, std::string_view message);
  void answer_done(bool keep_alive);
  void seal_chunk();
  void send();
  void left(const char* why);
  void next_request();
  void append_head(const HttpResponse& response, bool chunked, bool sized);
  void set_state(State state);
  void account_body(size_t bytes);

  std::shared_ptr<Loop> loop_;
  Loop::Socket socket_;
  std::unique_ptr<TlsSession> tls_;  // null: plain HTTP
  std::unique_ptr<HttpParser> parser_;
  std::shared_ptr<HttpListener> listener_;
  std::shared_ptr<HttpListener> sending_;  // of an answer that has ended, until its last byte is sent
  std::string in_;                         // read, not yet parsed
  std::string out_;                        // made, not yet sent from sent_ on
  std::string chunk_;                      // frames of a streamed answer, behind kChunkRoom bytes
  std::string answer_headers_;             // by add_header, as they will be sent
  size_t sent_ = 0;
  size_t counted_body_ = 0;
  TimeNs began_ = 0;  // when the first byte of the request was read
  const uint64_t address_;
  TimeNs deadline_ = 0;        // of the state; 0: none
  TimeNs write_deadline_ = 0;  // while bytes are unsent
  State state_ = State::idle;
  std::atomic<bool> gone_{
      false};  // closed or linger, for other threads; no state comes behind these but closed
  bool reading_ = false, writing_ = false, taking_ = false;
  bool begun_ = false;  // the head of a streamed answer is out
  bool chunked_ = false;
  bool keep_alive_ = true;
  bool head_only_ = false;  // HEAD: no body in the answer
  bool version_10_ = false;
  bool was_full_ = false;  // unsent() went over the high-water mark

  std::atomic<bool> queued_{false};  // on the loop's woken stack
  std::shared_ptr<Connection> woken_ref_;
  Connection* woken_next_ = nullptr;
};

}  // namespace sluice
