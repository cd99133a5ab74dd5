// Both ways to a collector where it is not, or is something else. That a real one takes what they send is
// tests/test_tracing.py's.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "observe/otlp_grpc.h"
#include "observe/otlp_http.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using Outcome = TraceSink::Outcome;

std::unique_ptr<TraceSink> sink_to(bool grpc, int port) {
  TracingSettings settings;
  settings.endpoint = "http://127.0.0.1:" + std::to_string(port);
  auto sink = grpc ? OtlpGrpc::create(settings) : OtlpHttp::create(settings);
  CHECK(sink.ok());
  return std::move(sink).value();
}

class OtlpSinks : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Protocols, OtlpSinks, testing::Bool(),
                         [](const auto& info) { return info.param ? "Grpc" : "Http"; });

// A port that nobody listens on: an answer, not an exception, and each time anew.
TEST_P(OtlpSinks, ACollectorThatIsAwayIsUnreachable) {
  auto sink = sink_to(GetParam(), 1);
  for (int i = 0; i < 2; ++i) {
    const TraceSink::Answer answer = sink->post("x");
    EXPECT_EQ(answer.outcome, Outcome::unreachable);
    EXPECT_NE(answer.why, "");
  }
}

// Whoever listens says something that is no answer, and closes.
TEST_P(OtlpSinks, SomethingElseIsUnreachable) {
  asio::io_context context;
  Tcp::acceptor acceptor(context, Tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
  std::thread other([&] {
    for (int i = 0; i < 2; ++i) {
      Tcp::socket socket(context);
      boost::system::error_code ignored;
      if (acceptor.accept(socket, ignored)) return;
      asio::write(socket, asio::buffer(std::string_view("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")),
                  ignored);
      socket.shutdown(Tcp::socket::shutdown_send, ignored);
    }
  });
  auto sink = sink_to(GetParam(), acceptor.local_endpoint().port());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sink->post("x").outcome, Outcome::unreachable);
  ::shutdown(acceptor.native_handle(), SHUT_RDWR);  // where a post did not connect
  other.join();
}

TEST_P(OtlpSinks, NothingIsSentAfterAnAbort) {
  auto sink = sink_to(GetParam(), 1);
  sink->abort();
  EXPECT_EQ(sink->post("x").why, "the server stops");
}

TEST(OtlpGrpc, OnlyWhatMayPassIsTriedAgain) {
  EXPECT_EQ(judge_grpc(200, 0, "").outcome, Outcome::taken);
  for (int status : {1, 4, 8, 10, 11, 14, 15})
    EXPECT_EQ(judge_grpc(200, status, "").outcome, Outcome::busy) << status;
  for (int status : {2, 3, 5, 6, 7, 9, 12, 13, 16, 99})
    EXPECT_EQ(judge_grpc(200, status, "").outcome, Outcome::refused) << status;
  EXPECT_EQ(judge_grpc(200, 16, "no token").why, "it answers gRPC status 16 (no token)");
  EXPECT_EQ(judge_grpc(503, -1, "").outcome, Outcome::busy);
  EXPECT_EQ(judge_grpc(404, -1, "").outcome, Outcome::refused);
  EXPECT_EQ(judge_grpc(200, -1, "").outcome, Outcome::refused) << "an answer without trailers is none";
}

}  // namespace
}  // namespace sluice
