// Answers every HTTP request with "hello", by Boost.Beast in its plainest asynchronous form: what bench/http.sh
// sets the server's rate against. One event loop per thread, each with a listening socket of its own.
//
//     hello_server PORT [THREADS]
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

class Session : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(tcp::socket socket) : socket_(std::move(socket)) {}

  void read() {
    request_ = {};
    http::async_read(socket_, buffer_, request_, [self = shared_from_this()](error_code error, size_t) {
      if (!error) self->answer();
    });
  }

 private:
  void answer() {
    response_ = {http::status::ok, request_.version()};
    response_.set(http::field::content_type, "text/plain");
    response_.keep_alive(request_.keep_alive());
    response_.body() = "hello";
    response_.prepare_payload();
    http::async_write(socket_, response_, [self = shared_from_this()](error_code error, size_t) {
      if (!error && self->response_.keep_alive()) self->read();
    });
  }

  tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
  http::request<http::string_body> request_;
  http::response<http::string_body> response_;
};

void accept(tcp::acceptor& acceptor) {
  acceptor.async_accept([&](error_code error, tcp::socket socket) {
    if (!error) {
      socket.set_option(tcp::no_delay(true));
      std::make_shared<Session>(std::move(socket))->read();
    }
    accept(acceptor);
  });
}

void serve(unsigned short port) {
  asio::io_context context{1};
  tcp::acceptor acceptor(context);
  acceptor.open(tcp::v4());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  acceptor.set_option(asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>(true));
  acceptor.bind({asio::ip::address_v4::loopback(), port});
  acceptor.listen(4096);
  accept(acceptor);
  context.run();
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return std::fprintf(stderr, "usage: hello_server PORT [THREADS]\n"), 2;
  const auto port = static_cast<unsigned short>(std::atoi(arguments[1]));
  std::vector<std::thread> threads;
  for (int i = 0; i < (count > 2 ? std::atoi(arguments[2]) : 1); ++i) threads.emplace_back(serve, port);
  for (std::thread& thread : threads) thread.join();
}
