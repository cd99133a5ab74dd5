// HTTP itself: framing, limits, timeouts, connections. Raw sockets against a server with a toy model.
#include <gmock/gmock.h>

#include <thread>

#include "base/meter.h"
#include "server/http_parser.h"
#include "server/json.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using namespace std::string_literals;
using testing::HasSubstr;

class HttpTest : public ServedTest {
 protected:
  int port() const { return server_->port(); }
  void expect_alive() {
    TestClient client(port());
    EXPECT_EQ(client.get("/health").status, 200);
  }
  // Sends bytes on a new connection; the answer's status, and that the connection is closed after it.
  void expect_refused(const std::string& bytes, int status) {
    TestClient client(port());
    client.send(bytes);
    const TestResponse response = client.read_response();
    EXPECT_EQ(response.status, status) << bytes.substr(0, 100);
    EXPECT_EQ(response.header("connection"), "close");
    auto body = JsonDocument::parse(response.body);
    ASSERT_TRUE(body.ok());
    ASSERT_TRUE(body->root().find("error"));
    EXPECT_TRUE(body->root().find("error")->find("message")->string());
    EXPECT_TRUE(client.at_end());
    expect_alive();
  }
};

constexpr const char* kTokenize = R"({"content":"ab"})";

TEST_F(HttpTest, KeepsTheConnectionForTheNextRequest) {
  start();
  TestClient client(port());
  for (int i = 0; i < 3; ++i) {
    const TestResponse response = client.get("/health");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.header("content-type"), "application/json");
    EXPECT_EQ(response.headers.count("connection"), 0u);
  }
  client.send("GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_response().header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpTest, Http10ClosesUnlessAskedNotTo) {
  start();
  TestClient client(port());
  client.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.read_response().header("connection"), "keep-alive");
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_response().header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpTest, AnswersPipelinedRequestsInOrder) {
  start();
  model_.scripted.script = [&](const Request&) { return model_.says({"A"}, FinishReason::length); };
  TestClient client(port());
  std::string all;
  for (int i = 0; i < 20; ++i) {
    all += "GET /health HTTP/1.1\r\nHost: t\r\nX-Request-Id: g" + std::to_string(i) + "\r\n\r\n";
    all += post_text("/v1/completions", R"({"prompt":"a"})", "X-Request-Id: p" + std::to_string(i) + "\r\n");
  }
  client.send(all);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(client.read_response().header("x-request-id"), "g" + std::to_string(i));
    const TestResponse second = client.read_response();
    EXPECT_EQ(second.header("x-request-id"), "p" + std::to_string(i));
    EXPECT_EQ(second.status, 200);
  }
}

TEST_F(HttpTest, TakesBytesOneByOne) {
  start();
  TestClient client(port());
  for (char c : post_text("/tokenize", kTokenize)) client.send(std::string_view(&c, 1));
  EXPECT_THAT(client.read_response().body, HasSubstr("tokens"));
}

TEST_F(HttpTest, TakesChunkedUploads) {
  start();
  TestClient client(port());
  client.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  client.send("5\r\n{\"con\r\n");
  client.send("b;x=y\r\ntent\":\"ab\"}\r\n");
  client.send("0\r\nTrailer: x\r\n\r\nGET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  const TestResponse response = client.read_response();
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(HttpTest, ContinuesWhenAsked) {
  start();
  TestClient client(port());
  const std::string text = post_text("/tokenize", kTokenize, "Expect: 100-continue\r\n");
  const size_t body = text.find("\r\n\r\n") + 4;
  client.send(text.substr(0, body));
  EXPECT_EQ(client.read_response().status, 100);
  client.send(text.substr(body));
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(HttpTest, RefusesTooLargeBodiesBeforeTheyCome) {
  ServerConfig config;
  config.max_body_bytes = 100 << 10;
  start(config);
  expect_refused("GET /health HTTP/1.1\r\n\r\n", 400);
  expect_refused("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
  expect_refused("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501);
  expect_refused("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 3000000000\r\n\r\n", 413);
  expect_refused("POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 102401\r\n\r\n",
                 413);
  std::string chunked = "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 30; ++i) chunked += "1000\r\n" + std::string(4096, ' ') + "\r\n";
  expect_refused(chunked, 413);
  // A client that sends all of it still reads the answer.
  expect_refused(post_text("/tokenize", std::string(20 << 20, ' ')), 413);
  TestClient client(port());
  EXPECT_EQ(client.post("/tokenize", R"({"content":")" + std::string(100000, 'a') + R"("})").status, 200);
}

TEST_F(HttpTest, RefusesBadLengthsAndCodings) {
  start();
  const std::string head = "POST /tokenize HTTP/1.1\r\nHost: t\r\n";
  expect_refused(head + "Content-Length: 99999999999999999999\r\n\r\n", 400);
  expect_refused(head + "Content-Length: -1\r\n\r\n", 400);
  expect_refused(head + "Content-Length: 1, 1\r\n\r\nx", 400);
  expect_refused(head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400);
  expect_refused(head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  expect_refused(head + "Transfer-Encoding: gzip\r\n\r\n", 501);
  expect_refused(head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400);
  expect_refused(head + "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415);
}

TEST_F(HttpTest, RefusesBadHeads) {
  start();
  expect_refused("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 client hello \r\n\r\n", 400);
  expect_refused("GET /health\r\n\r\n", 400);
  expect_refused("GET /health HTTP/2.0\r\n\r\n", 505);
  expect_refused("GET /health HTTP/1.1\r\nX: a\0b\r\n\r\n"s, 400);
  expect_refused("GET /health HTTP/1.1\r\nX : a\r\n\r\n", 400);
  expect_refused("GET /health HTTP/1.1\r\nX: " + std::string(100 << 10, 'a') + "\r\n\r\n", 431);
  std::string many = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 10000; ++i) many += "X" + std::to_string(i) + ": 1\r\n";
  expect_refused(many + "\r\n", 431);
}

// As a connection feeds it: what the parser leaves is given again, with what came since.
int status_of_head(std::string_view head, size_t piece, size_t limit) {
  HttpParser parser(limit, 1 << 10);
  std::string left;
  for (size_t at = 0; at < head.size() && parser.error_status() == 0; at += piece) {
    left += head.substr(at, piece);
    left.erase(0, parser.take(left));
  }
  return parser.error_status() ? parser.error_status() : parser.head_done() ? 200 : 0;
}

TEST(HttpParserTest, TheLimitOfAHeadIsTheSameHoweverItArrives) {
  std::string head = "GET /health HTTP/1.1\r\nHost: t\r\n";
  for (int i = 0; i < 100; ++i) head += "A: b\r\n";
  head += "\r\n";
  for (size_t piece :
       {size_t(1), size_t(2), size_t(5), size_t(6), size_t(7), size_t(64), size_t(600), head.size()}) {
    EXPECT_EQ(status_of_head(head, piece, head.size()), 200) << piece;
    EXPECT_EQ(status_of_head(head, piece, head.size() - 1), 431) << piece;
  }
}

TEST_F(HttpTest, TimesOutSlowRequestsButNotIdleOnes) {
  ServerConfig config;
  config.header_timeout_ms = 150;
  config.body_timeout_ms = 150;
  start(config);
  TestClient idle(port()), slow_head(port()), slow_body(port());
  slow_head.send("GET /hea");
  slow_body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
  EXPECT_EQ(slow_head.read_response().status, 408);
  EXPECT_EQ(slow_body.read_response().status, 408);
  EXPECT_TRUE(slow_head.at_end());
  EXPECT_EQ(idle.get("/health").status, 200);
}

TEST_F(HttpTest, ClosesConnectionsThatStayIdle) {
  ServerConfig config;
  config.idle_timeout_ms = 100;
  start(config);
  TestClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(client.read_response().status, 0);
}

TEST_F(HttpTest, HoldsManyIdleConnections) {
  start();
  std::vector<std::unique_ptr<TestClient>> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(std::make_unique<TestClient>(port()));
  expect_alive();
  EXPECT_EQ(idle[399]->get("/health").status, 200);
  EXPECT_EQ(idle[0]->get("/health").status, 200);
}

TEST_F(HttpTest, RefusesConnectionsOverTheLimit) {
  ServerConfig config;
  config.max_connections = 2;
  start(config);
  TestClient a(port()), b(port());
  EXPECT_EQ(a.get("/health").status, 200);
  EXPECT_EQ(b.get("/health").status, 200);
  TestClient c(port());
  EXPECT_EQ(c.read_response().status, 503);
  EXPECT_TRUE(c.at_end());
  EXPECT_EQ(a.get("/health").status, 200);
}

TEST_F(HttpTest, SeveralThreadsShareThePort) {
  ServerConfig config;
  config.network_threads = 3;
  start(config);
  for (int i = 0; i < 30; ++i) expect_alive();
}

TEST_F(HttpTest, APortInUseIsAnErrorAlsoWithSeveralThreads) {
  ServerConfig config;
  config.network_threads = 2;
  start(config);
  for (int threads : {1, 2}) {
    ServerConfig second;
    second.port = port();
    second.network_threads = threads;
    auto result = Server::start(second);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kIo);
    EXPECT_THAT(result.error().message, HasSubstr(std::to_string(port())));
  }
  ServerConfig nowhere;
  nowhere.host = "256.0.0.1";
  EXPECT_FALSE(Server::start(nowhere).ok());
}

TEST_F(HttpTest, RoutesAndMethods) {
  start();
  TestClient client(port());
  EXPECT_EQ(client.get("/nothing").status, 404);
  TestResponse wrong = client.get("/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  client.send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
  TestResponse head = client.read_response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "15");
  client.send("OPTIONS /health HTTP/1.1\r\nHost: t\r\n\r\n");
  TestResponse options = client.read_response();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("allow"), "GET, HEAD, OPTIONS");
  client.send("DELETE /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 405);
  EXPECT_EQ(client.get("http://test/health?x=1#y").status, 200);
  EXPECT_EQ(client.get("/%68ealth").status, 200);
  EXPECT_THAT(client.get("/routes").body, HasSubstr("/v1/chat/completions"));
}

TEST_F(HttpTest, RequestIdsAreEchoedCleanOrReplaced) {
  start();
  TestClient client(port());
  client.send("GET /health HTTP/1.1\r\nHost: t\r\nX-Request-Id: abc-1\r\n\r\n");
  EXPECT_EQ(client.read_response().header("x-request-id"), "abc-1");
  client.send("GET /health HTTP/1.1\r\nHost: t\r\nX-Request-Id: " + std::string(10000, 'x') + "\r\n\r\n");
  EXPECT_EQ(client.read_response().header("x-request-id"), std::string(128, 'x'));
  client.send("GET /health HTTP/1.1\r\nHost: t\r\nX-Request-Id: \xC3\xA9 b\r\n\r\n");
  EXPECT_THAT(client.read_response().header("x-request-id"), HasSubstr("req-"));
}

TEST_F(HttpTest, KeysAreAskedForOnTheApiOnly) {
  ServerConfig config;
  config.api_keys = {"secret", "other"};
  start(config);
  TestClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  EXPECT_EQ(client.get("/metrics").status, 200);
  EXPECT_EQ(client.get("/v1/models").status, 401);
  EXPECT_EQ(client.post("/tokenize", kTokenize, "Authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(client.post("/tokenize", kTokenize, "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(client.post("/tokenize", kTokenize, "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(client.post("/tokenize", kTokenize, "authorization: bearer other\r\n").status, 200);
  EXPECT_EQ(client.post("/tokenize", kTokenize, "X-Api-Key: other\r\n").status, 200);
}

TEST_F(HttpTest, SaysThatItLoads) {
  start({}, false);
  server_->set_loading("weights", 0.25);
  TestClient client(port());
  EXPECT_EQ(client.get("/health").status, 200);
  TestResponse ready = client.get("/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr(R"("phase":"weights","progress":0.25)"));
  TestResponse chat = client.post("/v1/chat/completions", "{}");
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(chat.header("retry-after"), "1");
  EXPECT_EQ(client.get("/v1/models").body, R"({"object":"list","data":[]})");
  EXPECT_EQ(client.get("/metrics").status, 200);
  server_->serve_model(borrowed(model_), {});
  EXPECT_EQ(client.get("/ready").status, 200);
  EXPECT_THAT(client.get("/v1/models").body, HasSubstr(R"("id":"toy")"));
  EXPECT_EQ(client.get("/v1/models/toy").status, 200);
  EXPECT_EQ(client.get("/v1/models/toy.gguf").status, 200);
  EXPECT_EQ(client.get("/v1/models/none").status, 404);
}

TEST_F(HttpTest, MetricsAreCompleteAndBounded) {
  start();
  TestClient client(port());
  const TestResponse first = client.get("/metrics");
  EXPECT_EQ(first.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(first.body, HasSubstr("sluice_http_requests_total{route=\"other\"}"));
  EXPECT_THAT(first.body, HasSubstr("sluice_http_generations_total{reason=\"client_disconnect\"}"));
  for (int i = 0; i < 50; ++i) {
    const std::string n = std::to_string(i);
    client.send("GET /v1/x" + n + " HTTP/1.1\r\nHost: t\r\nX-Request-Id: r" + n + "\r\n\r\n");
    EXPECT_EQ(client.read_response().status, 404);
    client.send("M" + n + " /y HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(client.read_response().status, 404);
    client.post("/v1/completions", R"({"model":"m)" + n + R"(","unknown)" + n + R"(":1,"prompt":"a"})");
  }
  const TestResponse last = client.get("/metrics");
  const auto lines = [](const std::string& s) { return std::count(s.begin(), s.end(), '\n'); };
  EXPECT_EQ(lines(last.body), lines(first.body));
  EXPECT_EQ(client.get("/metrics?aliases=0").body.find("vllm:"), std::string::npos);
}

TEST_F(HttpTest, DrainsAndStops) {
  start();
  TestClient idle(port()), client(port());
  EXPECT_EQ(idle.get("/health").status, 200);
  client.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
  model_.scripted.wait_submitted(1);
  model_.scripted.emit(0, model_.token("A"));
  client.read_until("\"A\"");
  std::thread drainer([&] { server_->drain(now_ns() + 20'000'000'000); });
  EXPECT_TRUE(idle.at_end());
  // Probes still get an answer, and it says that this server takes nothing more.
  TestClient probe(port());
  EXPECT_EQ(probe.get("/ready").status, 503);
  EXPECT_TRUE(probe.at_end());
  model_.scripted.emit(0, model_.token("B", FinishReason::length));
  EXPECT_FALSE(client.read_until("[DONE]").empty());
  drainer.join();
  EXPECT_TRUE(client.at_end());
}

TEST_F(HttpTest, CutsWhatOutlastsTheDrain) {
  start();
  TestClient stream(port()), whole(port());
  stream.send(post_text("/v1/completions", R"({"prompt":"a","stream":true})"));
  whole.send(post_text("/v1/completions", R"({"prompt":"b"})"));
  model_.scripted.wait_submitted(2);
  for (size_t i : {0u, 1u}) model_.scripted.emit(i, model_.token("A"));
  stream.read_until("\"A\"");
  server_->drain(now_ns());
  EXPECT_FALSE(stream.read_until("shutting down").empty());
  EXPECT_EQ(whole.read_response().status, 503);
  model_.scripted.wait_cancelled(0);
  model_.scripted.wait_cancelled(1);
}

}  // namespace
}  // namespace sluice
