// The page's files, and the stream of live numbers that it shows.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>

#include "server/json.h"
#include "server/limits.h"
#include "server/live_feed.h"
#include "server/page.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class PageTest : public ServedTest {
 protected:
  TestResponse get(const std::string& path, const std::string& headers = "") {
    TestClient client(server_->port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
    return client.read_response();
  }
};

TEST_F(PageTest, ComesAsItIsOrGzippedAndOnlyOnce) {
  start({}, false);  // it says that the model loads
  const TestResponse plain = get("/");
  EXPECT_EQ(plain.status, 200);
  EXPECT_EQ(plain.header("content-type"), "text/html; charset=utf-8");
  EXPECT_THAT(plain.body, HasSubstr("<title>Sluice</title>"));
  EXPECT_THAT(plain.header("content-security-policy"), HasSubstr("default-src 'none'"));
  EXPECT_EQ(plain.headers.count("set-cookie"), 0u);
  const TestResponse packed = get("/", "Accept-Encoding: br, gzip;q=0.8\r\n");
  EXPECT_EQ(packed.header("content-encoding"), "gzip");
  EXPECT_EQ(packed.body.substr(0, 2), "\x1f\x8b");
  EXPECT_LT(packed.body.size(), plain.body.size());
  EXPECT_NE(packed.header("etag"), plain.header("etag"));
  EXPECT_EQ(get("/", "Accept-Encoding: gzip;q=0\r\n").headers.count("content-encoding"), 0u);

  TestClient client(server_->port());
  client.send("GET / HTTP/1.1\r\nHost: t\r\nIf-None-Match: \"x\", " + plain.header("etag") + "\r\n\r\n");
  const TestResponse same = client.read_response(true);
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.headers.count("content-length"), 0u);
  EXPECT_EQ(client.get("/health").status, 200) << "the connection goes on";
  EXPECT_EQ(get("/", "If-None-Match: " + packed.header("etag") + "\r\n").status, 200)
      << "that was another coding";
}

TEST_F(PageTest, EveryFileThatIsNamedIsThere) {
  start();
  size_t named = 0;
  for (const PageFile& file : page_files()) {
    EXPECT_EQ(get("/page/" + std::string(file.name)).body, file.bytes);
    for (size_t at = 0; (at = file.bytes.find("\"page/", at)) != std::string_view::npos; ++at, ++named) {
      const std::string_view rest = file.bytes.substr(at + 1);
      EXPECT_EQ(get("/" + std::string(rest.substr(0, rest.find('"')))).status, 200) << rest.substr(0, 40);
    }
  }
  EXPECT_GE(named, 5u);
  EXPECT_EQ(get("/page/nothing.js").status, 404);
  EXPECT_EQ(get("/page/").status, 404);
  EXPECT_EQ(get("/page/../etc/passwd").status, 404);
}

TEST_F(PageTest, CanBeTurnedOff) {
  ServerConfig config;
  config.page = false;
  start(config);
  EXPECT_THAT(get("/").body, HasSubstr("/v1/chat/completions"));
  EXPECT_EQ(get("/page/main.js").status, 404);
}

TEST_F(PageTest, LoadsWithoutAKeyButItsNumbersNeedOne) {
  ServerConfig config;
  config.api_keys = {"secret"};
  start(config);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(get("/page/main.js").status, 200);
  EXPECT_EQ(get("/v1/live").status, 401);
}

TEST_F(PageTest, LiveBeginsWithWhatIsFixedAndGoesOnWithSamples) {
  start();
  TestClient client(server_->port());
  client.send("GET /v1/live HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr("text/event-stream")) << "only the head and hello so far";
  const std::string sample = client.read_until("\"verdict\"");
  EXPECT_THAT(sample, HasSubstr("\"running\":"));
  EXPECT_THAT(sample, HasSubstr("\"kv\":{"));
  server_->drain(now_ns() + 10'000'000'000);  // does not wait for listeners: it ends their streams
  EXPECT_THAT(client.read_until("\r\n0\r\n\r\n"), HasSubstr("\r\n0\r\n\r\n"));
}

TEST_F(PageTest, AHeadOfLiveIsAHeadAlone) {
  start();
  TestClient client(server_->port());
  client.send("HEAD /v1/live HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_response(true).header("content-type"), "text/event-stream");
  EXPECT_EQ(client.get("/health").status, 200);
}

// An exchange whose client takes nothing.
class StuckExchange final : public HttpExchange {
 public:
  void wake() override {
    std::lock_guard lock(mutex_);
    ++wakes_;
    woken_.notify_all();
  }
  void post(std::function<void()>) override {}
  void add_header(std::string_view, std::string_view) override {}
  bool gone() const override { return false; }
  void listen(std::shared_ptr<HttpListener> listener) override { listener_ = std::move(listener); }
  void respond(HttpResponse response) override { status_ = response.status; }
  void begin(HttpResponse) override {}
  std::string& frames() override { return frames_; }
  void flush() override {}
  size_t unsent() const override { return unsent_ + frames_.size(); }
  void end(bool complete) override { ended_ = complete ? "complete" : "cut"; }

  void wait_for_wake() {
    std::unique_lock lock(mutex_);
    woken_.wait(lock, [this] { return wakes_ > 0; });
  }

  std::shared_ptr<HttpListener> listener_;
  size_t unsent_ = 0;
  int status_ = 0;
  std::string ended_;

 private:
  std::string frames_;
  std::mutex mutex_;
  std::condition_variable woken_;
  int wakes_ = 0;
};

TEST_F(PageTest, ASlowListenerIsDroppedAndTheOthersGoOn) {
  auto slow = std::make_shared<StuckExchange>(), quick = std::make_shared<StuckExchange>();
  {
    LiveFeed feed;
    feed.serve(borrowed(model_), "toy", {});
    feed.listen(slow, false);
    feed.listen(quick, false);
    EXPECT_EQ(feed.listeners(), 2);
    slow->wait_for_wake();
    quick->wait_for_wake();
    slow->unsent_ = limits::kStreamHighWater;
    slow->listener_->on_wake();
    quick->listener_->on_wake();
    EXPECT_EQ(slow->ended_, "cut");
    EXPECT_EQ(quick->ended_, "");
    slow->listener_.reset();
    feed.stop();
    quick->listener_->on_wake();
    EXPECT_EQ(quick->ended_, "complete");
    quick->listener_.reset();
  }
}

TEST_F(PageTest, ListenersAreBounded) {
  LiveFeed feed;
  feed.serve(borrowed(model_), "toy", {});
  std::vector<std::shared_ptr<StuckExchange>> all;
  for (int i = 0; i <= limits::kLiveListeners; ++i) {
    all.push_back(std::make_shared<StuckExchange>());
    feed.listen(all.back(), false);
  }
  EXPECT_EQ(all.back()->status_, 429);
  all.front()->listener_->on_gone("client_disconnect");
  all.front()->listener_.reset();
  feed.listen(all.back(), false);
  EXPECT_NE(all.back()->listener_, nullptr) << "a place is free again";
  feed.stop();
  for (auto& exchange : all) exchange->listener_.reset();
}

}  // namespace
}  // namespace sluice
