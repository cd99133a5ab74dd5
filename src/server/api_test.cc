// The generation APIs over HTTP: answers whole and streamed, recorded byte for byte where clients depend on the
// shape.
#include <gmock/gmock.h>

#include <regex>
#include <thread>

#include "server/json.h"
#include "server/testing/api_test_case.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kWorld = "\xE2\x96\x81world";

using ApiTest = ApiTestCase;

// Ids and times differ from run to run.
std::string steady(std::string text) {
  text = std::regex_replace(text, std::regex(R"("id":"(cmpl|chatcmpl)-[a-z0-9]{24}")"), R"("id":"$1-X")");
  text = std::regex_replace(text, std::regex(R"("created":[0-9]+)"), R"("created":0)");
  return std::regex_replace(text, std::regex(R"(,"timings":\{[^}]*\})"), "");
}

TEST_F(ApiTest, CompletionWhole) {
  say({"hello", kWorld}, FinishReason::stop);
  const TestResponse r = complete(R"("prompt":"ab","max_tokens":9)");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(
      steady(r.body),
      R"({"id":"cmpl-X","object":"text_completion","created":0,"model":"toy","system_fingerprint":"fp_sluice_1",)"
      R"("choices":[{"index":0,"text":"hello world","logprobs":null,"finish_reason":"stop","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}})");
  EXPECT_THAT(r.body, HasSubstr(R"("timings":{"queue_ms":)"));
  EXPECT_EQ(model_.scripted.request(0).max_tokens, 9);
}

TEST_F(ApiTest, CompletionStreamed) {
  TestClient client(server_->port());
  client.send(
      post_text("/v1/completions", R"({"prompt":"ab","stream":true,"stream_options":{"include_usage":true}})"));
  model_.scripted.wait_submitted(1);
  model_.scripted.emit(0, model_.token("hello"));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr("\"text\":\"hello\""));
  model_.scripted.emit(0, model_.token(kWorld));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr("\"text\":\" world\""));
  model_.scripted.emit(0, model_.end());
  const std::string tail = client.read_until("[DONE]\n\n");
  const std::string head =
      R"(data: {"id":"cmpl-X","object":"text_completion","created":0,"model":"toy","system_fingerprint":"fp_sluice_1",)";
  EXPECT_THAT(
      steady(tail),
      HasSubstr(
          head +
          R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}]})"
          "\n\n" +
          head +
          R"("choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,)"
          R"("prompt_tokens_details":{"cached_tokens":0}}})"
          "\n\ndata: [DONE]\n\n"));
  client.read_until("0\r\n\r\n");
  EXPECT_EQ(client.get("/health").status, 200);  // the connection lives on
}

TEST_F(ApiTest, ChatWhole) {
  say({"hello"}, FinishReason::stop);
  const TestResponse r = chat(R"("logprobs":true,"top_logprobs":1)");
  EXPECT_EQ(
      steady(r.body),
      R"({"id":"chatcmpl-X","object":"chat.completion","created":0,"model":"toy","system_fingerprint":"fp_sluice_1",)"
      R"("choices":[{"index":0,"message":{"role":"assistant","content":"hello","refusal":null},"logprobs":{"content":[)"
      R"({"token":"hello","logprob":-0.5,"bytes":[104,101,108,108,111],"top_logprobs":[{"token":"hello","logprob":-0.5,)"
      R"("bytes":[104,101,108,108,111]}]}],"refusal":null},"finish_reason":"stop","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":19,"completion_tokens":2,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":0}}})");
  EXPECT_EQ(model_.tokenizer().decode(model_.scripted.request(0).prompt), "[user]x\n[assistant]");
  EXPECT_EQ(model_.scripted.request(0).max_tokens, 512 - 19);  // up to the context
}

TEST_F(ApiTest, ChatStreamed) {
  say({"hello", kWorld}, FinishReason::length);
  const TestResponse r = chat(R"("stream":true)");
  EXPECT_EQ(r.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::string head =
      R"({"id":"chatcmpl-X","object":"chat.completion.chunk","created":0,"model":"toy","system_fingerprint":"fp_sluice_1","choices":[{"index":0,)";
  EXPECT_THAT(
      sse_payloads(steady(r.body)),
      ElementsAre(
          head +
              R"("delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"stop_reason":null}]})",
          head +
              R"("delta":{"content":"hello world"},"logprobs":null,"finish_reason":null,"stop_reason":null}]})",
          head + R"("delta":{},"logprobs":null,"finish_reason":"length","stop_reason":null}]})", "[DONE]"));
}

// What a stream says in pieces is what a whole answer says: text, ends, log-probabilities, ids.
// With pooled I/O and the plain way.
class StreamTest : public ApiTestCase, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    ServerConfig config;
    config.pooled_io = GetParam();
    start(config);
  }
};
INSTANTIATE_TEST_SUITE_P(Io, StreamTest, testing::Bool());

TEST_P(StreamTest, StreamedEqualsWhole) {
  const std::vector<std::vector<std::string_view>> texts = {{"ABC", "DEF", "GH", "I", "J"},
                                                            {"Y", "Y", "Y"},
                                                            {"a", "<0xE6>", "<0xBC>", "<0xA2>", "b"},
                                                            {"<0xF0>", "<0x9F>"},
                                                            {}};
  for (const auto& tokens : texts) {
    for (FinishReason finish : {FinishReason::stop, FinishReason::length}) {
      for (const char* stop : {"", R"(,"stop":["EFG"])", R"(,"stop":["YYYZ","Jx"])", R"(,"stop":"Y")"}) {
        say(tokens, finish);
        const std::string members =
            R"("logprobs":true,"top_logprobs":2,"return_token_ids":true)" + std::string(stop);
        auto whole = JsonDocument::parse(chat(members).body);
        const JsonView choice = whole->root().find("choices")->at(0);
        std::string text, entries, ids, reason;
        for (const std::string& payload : sse_payloads(chat(members + ",\"stream\":true").body)) {
          if (payload == "[DONE]") break;
          auto d = JsonDocument::parse(payload);
          ASSERT_TRUE(d.ok()) << payload;
          const JsonView c = d->root().find("choices")->at(0);
          if (auto content = c.find("delta")->find("content")) text += *content->string();
          if (!c.find("logprobs")->is_null()) {
            c.find("logprobs")->find("content")->each([&](JsonView e) {
              return entries += e.text() + ",", true;
            });
          }
          if (auto list = c.find("token_ids"))
            list->each([&](JsonView e) { return ids += e.text() + ",", true; });
          if (auto r = c.find("finish_reason")->string()) reason += *r;
        }
        std::string whole_entries, whole_ids;
        choice.find("logprobs")->find("content")->each([&](JsonView e) {
          return whole_entries += e.text() + ",", true;
        });
        choice.find("token_ids")->each([&](JsonView e) { return whole_ids += e.text() + ",", true; });
        EXPECT_EQ(text, *choice.find("message")->find("content")->string());
        EXPECT_EQ(entries, whole_entries);
        EXPECT_EQ(ids, whole_ids);
        EXPECT_EQ(reason, *choice.find("finish_reason")->string());
      }
    }
  }
}

TEST_F(ApiTest, BytesOfChatLogprobsRebuildTheText) {
  say({"a", "<0xE6>", "<0xBC>", "<0xA2>", kWorld}, FinishReason::stop);
  auto d = JsonDocument::parse(chat(R"("logprobs":true)").body);
  std::string bytes;
  const JsonView choice = d->root().find("choices")->at(0);
  choice.find("logprobs")->find("content")->each([&](JsonView entry) {
    entry.find("bytes")->each([&](JsonView b) { return bytes += char(*b.integer()), true; });
    return true;
  });
  EXPECT_EQ(bytes, *choice.find("message")->find("content")->string());
}

TEST_F(ApiTest, CompletionLogprobsAndStop) {
  say({"ABC", "DEF", "GH"}, FinishReason::stop);
  auto d =
      JsonDocument::parse(complete(R"("prompt":"x","stop":"EFG","logprobs":1,"return_token_ids":true)").body);
  const JsonView choice = d->root().find("choices")->at(0);
  EXPECT_EQ(choice.find("text")->string(), "ABCD");
  EXPECT_EQ(choice.find("stop_reason")->string(), "EFG");
  EXPECT_EQ(
      choice.find("logprobs")->text(),
      R"({"tokens":["ABC","DEF"],"token_logprobs":[-0.5,-0.5],"top_logprobs":[{"ABC":-0.5},{"DEF":-0.5}],"text_offset":[0,3]})");
  EXPECT_EQ(choice.find("token_ids")->size(), 2u);
  EXPECT_EQ(choice.find("prompt_token_ids")->size(), 1u);
  EXPECT_EQ(d->root().find("usage")->find("completion_tokens")->integer(), 3);
  model_.scripted.wait_cancelled(0);
}

TEST_F(ApiTest, EchoGivesPromptLogprobsWithTheFirstNull) {
  TestClient client(server_->port());
  client.send(post_text(
      "/v1/completions",
      R"({"prompt":"ab","max_tokens":0,"echo":true,"logprobs":0,"return_tokens_as_token_ids":true})"));
  model_.scripted.wait_submitted(1);
  EXPECT_EQ(model_.scripted.request(0).sampling.prompt_top_logprobs, 0);
  EXPECT_EQ(model_.scripted.request(0).max_tokens, 0);
  TokenLogprobs logprobs;
  logprobs.logprob = -3.5f;
  model_.scripted.set_prompt_logprobs(0, {logprobs});
  TokenEvent end;
  end.finish = FinishReason::length;
  model_.scripted.emit(0, end);
  const std::string a = std::to_string(model_.id("a")), b = std::to_string(model_.id("b"));
  EXPECT_THAT(client.read_response().body,
              HasSubstr(R"("text":"ab","logprobs":{"tokens":["token_id:)" + a + R"(","token_id:)" + b +
                        R"("],"token_logprobs":[null,-3.5],)" + R"("top_logprobs":[null,{"token_id:)" + b +
                        R"(":-3.5}],"text_offset":[0,1]},"finish_reason":"length")"));
}

TEST_F(ApiTest, AStreamEchoesThePromptOnce) {
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"ab","stream":true,"echo":true,"logprobs":0})"));
  model_.scripted.wait_submitted(1);
  model_.scripted.set_prompt_logprobs(0, {TokenLogprobs()});
  model_.scripted.emit(0, model_.token("A"));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"("text":"abA","logprobs":{"tokens":["a","b","A"])"));
  model_.scripted.emit(0, model_.token("B", FinishReason::length));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"("text":"B","logprobs":{"tokens":["B"],)"));
}

TEST_F(ApiTest, MaxTokensZeroIsAnEmptyAnswer) {
  say({}, FinishReason::length);
  EXPECT_THAT(complete(R"("prompt":"a","max_tokens":0)").body,
              HasSubstr(R"("text":"","logprobs":null,"finish_reason":"length")"));
  EXPECT_THAT(chat(R"("max_tokens":0)").body, HasSubstr(R"("content":"")"));
  EXPECT_THAT(chat(R"("max_tokens":0,"stream":true)").body,
              HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"length")"));
}

TEST_F(ApiTest, SeveralPromptsAndChoicesInOrder) {
  model_.scripted.script = [&](const Request& r) {
    return model_.says({r.prompt[0] == model_.id("a") ? "A" : "B", r.sampling.seed == 7 ? "0" : "1"},
                       FinishReason::length);
  };
  auto d = JsonDocument::parse(complete(R"("prompt":["a","bc"],"n":2,"seed":7)").body);
  std::vector<std::string> texts;
  d->root().find("choices")->each([&](JsonView c) {
    EXPECT_EQ(c.find("index")->integer(), int64_t(texts.size()));
    texts.emplace_back(*c.find("text")->string());
    return true;
  });
  EXPECT_THAT(texts, ElementsAre("A0", "A1", "B0", "B1"));
  EXPECT_EQ(d->root().find("usage")->find("prompt_tokens")->integer(), 3);
  EXPECT_EQ(d->root().find("usage")->find("completion_tokens")->integer(), 8);
}

TEST_F(ApiTest, StreamedChoicesKeepApart) {
  TestClient client(server_->port());
  client.send(post_text("/v1/completions", R"({"prompt":"a","n":2,"stream":true})"));
  model_.scripted.wait_submitted(2);
  model_.scripted.emit(1, model_.token("B"));
  EXPECT_THAT(client.read_until("\n\n"), HasSubstr(R"({"index":1,"text":"B")"));
  model_.scripted.emit(0, model_.token("A", FinishReason::length));
  EXPECT_THAT(client.read_until("\n\n"),
              HasSubstr(R"({"index":0,"text":"A","logprobs":null,"finish_reason":"length")"));
  model_.scripted.emit(1, model_.end());
  EXPECT_THAT(client.read_until("[DONE]\n\n"),
              HasSubstr(R"({"index":1,"text":"","logprobs":null,"finish_reason":"stop")"));
}

TEST_F(ApiTest, RefusesWhatDoesNotFit) {
  expect_error(complete(R"("prompt":")" + std::string(512, 'a') + "\""), 400, "prompt",
               "context_length_exceeded");
  expect_error(complete(R"("stream":true,"prompt":")" + std::string(600, 'a') + "\""), 400, "prompt",
               "context_length_exceeded");
  expect_error(complete(R"("prompt":"")"), 400, "prompt");
  expect_error(complete(R"("prompt":"a","model":"gpt-none")"), 404, "model", "model_not_found");
  expect_error(complete(R"("prompt":"a","n":0)"), 400, "n");
  expect_error(complete(R"("prompt":["a","a"],"n":0)"), 400, "n");
  EXPECT_EQ(complete(R"("prompt")").status, 400);
  EXPECT_EQ(model_.scripted.submitted(), 0u);
  say({"A"}, FinishReason::length);
  for (const char* name : {"toy", "toy.gguf", "/models/toy.gguf", "TO", ""}) {
    EXPECT_EQ(complete(R"("prompt":"a","model":")" + std::string(name) + "\"").status, 200) << name;
  }
}

TEST_F(ApiTest, MaxTokensIsCutAtTheContext) {
  say({"A"}, FinishReason::length);
  complete(R"("prompt":"abc","max_tokens":100000)");
  EXPECT_EQ(model_.scripted.request(0).max_tokens, 509);
}

TEST_F(ApiTest, ChatNeedsATemplate) {
  model_.drop_template();
  const TestResponse r = chat();
  expect_error(r, 400, "messages", "no_chat_template");
  EXPECT_THAT(r.body, HasSubstr("--chat-template"));
  expect_error(post("/apply-template", R"({"messages":[{"role":"user","content":"x"}]})"), 400, "messages");
}

TEST_F(ApiTest, ATemplateThatRaisesIsTheClientsError) {
  model_.set_template(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% "
      "endfor %}a");
  const TestResponse r = post("/v1/chat/completions", R"({"messages":[{"role":"system","content":"s"}]})");
  expect_error(r, 400, "messages");
  EXPECT_THAT(r.body, HasSubstr("no system role"));
  say({"A"}, FinishReason::length);
  EXPECT_EQ(chat().status, 200);
}

TEST_F(ApiTest, AFullQueueIs429AndTakesNothingHalf) {
  model_.scripted.accept_at_most = 1;
  const TestResponse r = complete(R"("prompt":"a","n":2)");
  expect_error(r, 429, "", "queue_full");
  EXPECT_EQ(r.headers.at("retry-after"), "1");
  model_.scripted.wait_cancelled(0);
}

TEST_F(ApiTest, ALeavingClientCancelsAtOnce) {
  for (const char* body : {R"({"prompt":"a","n":2,"stream":true})", R"({"prompt":"a","n":2})"}) {
    for (int how = 0; how < 3; ++how) {
      const size_t first = model_.scripted.submitted();
      TestClient client(server_->port());
      client.send(post_text("/v1/completions", body));
      model_.scripted.wait_submitted(first + 2);
      if (how > 0) model_.scripted.emit(first, model_.token("A"));
      if (how == 1)
        client.reset();
      else
        client.close();
      model_.scripted.wait_cancelled(first);
      model_.scripted.wait_cancelled(first + 1);
    }
  }
}

TEST_F(ApiTest, FailuresHaveAStatusBeforeTheStreamAndAnEventInIt) {
  const std::pair<FinishReason, int> cases[] = {
      {FinishReason::failed, 500}, {FinishReason::deadline, 504}, {FinishReason::cancelled, 503}};
  for (const auto& [reason, status] : cases) {
    TokenEvent failed;
    failed.finish = reason;
    model_.scripted.script = [&](const Request&) { return std::vector<TokenEvent>{failed}; };
    EXPECT_EQ(complete(R"("prompt":"a")").status, status);
    EXPECT_EQ(complete(R"("prompt":"a","stream":true)").status, status);
    model_.scripted.script = [&](const Request&) {
      return std::vector<TokenEvent>{model_.token("A"), model_.token("B")};
    };
    TestClient client(server_->port());
    const size_t at = model_.scripted.submitted();
    client.send(
        post_text("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true})"));
    model_.scripted.wait_submitted(at + 1);
    client.read_until("AB");
    model_.scripted.emit(at, failed);
    EXPECT_THAT(client.read_until("}\n\n"), testing::Not(HasSubstr("[DONE]")));
    const std::string event = client.read_until("}}\n\n");
    EXPECT_THAT(event, HasSubstr(R"(data: {"error":{"message":)"));
    EXPECT_TRUE(client.at_end());
  }
}

TEST_F(ApiTest, TheDeadlineOfTheHeaderReachesTheEngine) {
  say({"A"}, FinishReason::length);
  const TimeNs before = now_ns();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})", "X-Request-Timeout-Ms: 5000\r\n").status, 200);
  EXPECT_GE(model_.scripted.request(0).deadline, before + 5'000'000'000);
  EXPECT_LE(model_.scripted.request(0).deadline, now_ns() + 5'000'000'000);
  ServerConfig config;
  config.request_timeout_ms = 1000;
  start(config);
  const size_t at = model_.scripted.submitted();
  complete(R"("prompt":"a")");
  EXPECT_LE(model_.scripted.request(at).deadline, now_ns() + 1'000'000'000);
  EXPECT_GT(model_.scripted.request(at).deadline, 0);
  for (const char* bad : {"0", "-1", "x", "1.5", "99999999999"}) {
    expect_error(
        post("/v1/completions", R"({"prompt":"a"})", "X-Request-Timeout-Ms: " + std::string(bad) + "\r\n"), 400,
        "x-request-timeout-ms");
  }
}

TEST_F(ApiTest, AHeaderThatCountsIsGivenOnce) {
  say({"A"}, FinishReason::stop);
  for (const std::string name : {"X-Priority: batch", "X-Request-Timeout-Ms: 5000", "X-Request-Id: a",
                                 "X-Api-Key: k", "Authorization: Bearer k"}) {
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})", name + "\r\n").status, 200);
    std::string field = name.substr(0, name.find(':'));
    std::transform(field.begin(), field.end(), field.begin(), ::tolower);
    expect_error(post("/v1/completions", R"({"prompt":"a"})", name + "\r\n" + name + "\r\n"), 400, field);
  }
}

TEST_F(ApiTest, TheLaneComesFromTheHeaderUnlessTheBodySaysMore) {
  say({"A"}, FinishReason::length);
  const auto lane_of = [&](const std::string& members, const std::string& header) {
    const size_t at = model_.scripted.submitted();
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"a")" + members + "}", header).status, 200);
    return model_.scripted.request(at).lane;
  };
  EXPECT_EQ(lane_of("", ""), Lane::standard);
  EXPECT_EQ(lane_of("", "X-Priority: interactive\r\n"), Lane::interactive);
  EXPECT_EQ(lane_of(R"(,"priority":"batch")", ""), Lane::batch);
  EXPECT_EQ(lane_of(R"(,"priority":"batch")", "X-Priority: interactive\r\n"), Lane::batch);
  EXPECT_EQ(lane_of(R"(,"priority":0)", "x-priority: batch\r\n"), Lane::batch);  // 0 says nothing
  const TestResponse bad = post("/v1/completions", R"({"prompt":"a"})", "X-Priority: urgent\r\n");
  expect_error(bad, 400, "x-priority");
  EXPECT_THAT(bad.body, HasSubstr("interactive, standard, batch"));
  expect_error(complete(R"("prompt":"a","priority":"urgent")"), 400, "priority");
}

TEST_F(ApiTest, TheTenantIsTheKeysPlace) {
  say({"A"}, FinishReason::length);
  complete(R"("prompt":"a")");
  EXPECT_EQ(model_.scripted.request(0).tenant, 0u);
  ServerConfig config;
  config.api_keys = {"first", "second"};
  start(config);
  post("/v1/completions", R"({"prompt":"a"})", "Authorization: Bearer second\r\n");
  post("/v1/completions", R"({"prompt":"a"})", "X-Api-Key: first\r\n");
  EXPECT_EQ(model_.scripted.request(1).tenant, 2u);
  EXPECT_EQ(model_.scripted.request(2).tenant, 1u);
}

// A reader that stops: the server buffers little, the rest stays in the engine's outbox; when it reads on,
// nothing is lost.
TEST_F(ApiTest, ASlowReaderStopsItsOwnStreamOnly) {
  TestClient slow(server_->port(), 2048);
  slow.send(post_text("/v1/completions", R"({"prompt":"a","stream":true,"logprobs":2})"));
  model_.scripted.wait_submitted(1);
  std::thread engine([&] {
    // Until it is dropped, should the machine stand still for as long as the write's deadline.
    const auto emit = [&](const TokenEvent& event) {
      while (!model_.scripted.emit(0, event) && !model_.scripted.cancelled(0)) std::this_thread::yield();
    };
    for (int made = 0; made < 60000; ++made) emit(model_.token("A"));
    emit(model_.token("Z", FinishReason::length));
  });
  // Its outbox fills up, since the socket takes no more; others are answered meanwhile.
  while (model_.scripted.waiting_events(0) < 4096 && !model_.scripted.cancelled(0)) std::this_thread::yield();
  TestClient other(server_->port());
  EXPECT_EQ(other.get("/health").status, 200);
  const TestResponse response = slow.read_response();
  engine.join();
  EXPECT_TRUE(response.complete);
  size_t letters = 0;
  for (const std::string& payload : sse_payloads(response.body)) {
    if (payload == "[DONE]") continue;
    auto d = JsonDocument::parse(payload);
    ASSERT_TRUE(d.ok());
    letters += d->root().find("choices")->at(0).find("text")->string()->size();
  }
  EXPECT_EQ(letters, 60001u);
}

TEST_F(ApiTest, AReaderThatNeverReadsIsDropped) {
  ServerConfig config;
  config.write_timeout_ms = 200;
  start(config);
  // More than the buffers of a socket hold, at once.
  model_.scripted.script = [&](const Request&) { return std::vector<TokenEvent>(4096, model_.token("A")); };
  TestClient slow(server_->port(), 2048);
  slow.send(post_text("/v1/completions", R"({"prompt":"a","n":4,"stream":true,"logprobs":2})"));
  for (size_t choice = 0; choice < 4; ++choice) {
    model_.scripted.wait_submitted(choice + 1);
    model_.scripted.wait_cancelled(choice);
  }
}

TEST_F(ApiTest, LongBodiesGoThroughThePoolAndCountTheSame) {
  say({"A"}, FinishReason::length);
  model_.scripted.info_.context = 100000;
  auto d = JsonDocument::parse(complete(R"("prompt":")" + std::string(50000, 'a') + "\"").body);
  EXPECT_EQ(d->root().find("usage")->find("prompt_tokens")->integer(), 50000);
  EXPECT_EQ(complete(R"("prompt":")" + std::string(50000, 'a') + "\"" + ",\"n\":0").status, 400);
}

TEST_F(ApiTest, TokenizeDetokenizeAndTemplate) {
  const std::string a = std::to_string(model_.id("a")), h = std::to_string(model_.id("hello"));
  EXPECT_EQ(post("/tokenize", R"({"content":"a"})").body, R"({"tokens":[)" + a + "]}");
  EXPECT_EQ(post("/tokenize", R"({"content":"a","with_pieces":true})").body,
            R"({"tokens":[{"id":)" + a + R"(,"piece":"a"}]})");
  EXPECT_EQ(post("/tokenize", R"({"content":"\u00ff","with_pieces":true})").body,
            R"({"tokens":[{"id":198,"piece":[195]},{"id":194,"piece":[191]}]})");
  EXPECT_EQ(post("/tokenize", R"({"content":""})").body, R"({"tokens":[]})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[)" + h + "," + a + "]}").body, R"({"content":"helloa"})");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[243]})").body, "{\"content\":\"\xEF\xBF\xBD\"}");
  expect_error(post("/detokenize", R"({"tokens":[99999]})"), 400, "tokens");
  expect_error(post("/detokenize", "{}"), 400, "tokens");
  expect_error(post("/tokenize", R"({"content":5})"), 400, "content");
  EXPECT_EQ(
      post("/apply-template", R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})")
          .body,
      R"({"prompt":"[user]x\n"})");
}

}  // namespace
}  // namespace sluice
