// Requests as JSON to requests as values: what is taken, and what is refused with which member named.
#include <gmock/gmock.h>

#include "server/chat_request.h"
#include "server/completion_request.h"

namespace sluice {
namespace {

const RequestBounds kBounds{100, 128, 256, 256};

std::string completion(const std::string& members) {
  return R"({"prompt":"x")" + (members.empty() ? "" : "," + members) + "}";
}
std::string chat(const std::string& members) {
  return R"({"messages":[{"role":"user","content":"x"}])" + (members.empty() ? "" : "," + members) + "}";
}

CompletionRequest completion_of(const std::string& members) {
  auto r = parse_completion_request(completion(members), kBounds);
  EXPECT_TRUE(r.ok()) << members << ": " << r.error().message;
  return r.ok() ? std::move(r).value() : CompletionRequest();
}

ChatRequest chat_of(const std::string& members) {
  auto r = parse_chat_request(chat(members), kBounds);
  EXPECT_TRUE(r.ok()) << members << ": " << r.error().message;
  return r.ok() ? std::move(r).value() : ChatRequest();
}

// The member that an error names; "" where the request is taken.
std::string refused_completion(const std::string& body) {
  auto r = parse_completion_request(body, kBounds);
  return r.ok() ? "" : r.error().field.empty() ? "(body)" : r.error().field;
}

std::string refused_chat(const std::string& body) {
  auto r = parse_chat_request(body, kBounds);
  return r.ok() ? "" : r.error().field.empty() ? "(body)" : r.error().field;
}

TEST(CompletionRequest, ReadsEveryShapeOfPrompt) {
  auto r = parse_completion_request(R"({"prompt":[3,4]})", kBounds);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(std::get<std::vector<int32_t>>(r->prompts.at(0)), (std::vector<int32_t>{3, 4}));
  r = parse_completion_request(R"({"prompt":[[3],[4,5]]})", kBounds);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(std::get<std::vector<int32_t>>(r->prompts.at(1)), (std::vector<int32_t>{4, 5}));
  r = parse_completion_request(R"({"prompt":["a","b"]})", kBounds);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(std::get<std::string>(r->prompts.at(1)), "b");
}

TEST(CompletionRequest, RefusesPromptsThatAreNone) {
  for (const char* bad : {"[]", "[[]]", "[33,\"a\"]", "[\"a\",33]", "[[1],2]", "[100]", "[-1]", "[4294967295]",
                          "[9223372036854775808]", "[1.5]", "{}", "1", "true", "[null]", "[[\"a\"]]"}) {
    EXPECT_EQ(refused_completion(std::string(R"({"prompt":)") + bad + "}"), "prompt") << bad;
  }
  EXPECT_EQ(refused_completion("{}"), "prompt");
  EXPECT_EQ(refused_completion(R"({"prompt":null})"), "prompt");
  EXPECT_EQ(refused_completion("[]"), "(body)");
  std::string million = R"({"prompt":["a")";
  for (int i = 0; i < 1000000; ++i) million += ",\"a\"";
  EXPECT_EQ(refused_completion(million + "]}"), "prompt");
}

TEST(Members, RangesAreChecked) {
  const std::pair<const char*, const char*> bad[] = {{"temperature", "-0.1"},
                                                     {"temperature", "2.1"},
                                                     {"temperature", "999999"},
                                                     {"temperature", "\"1\""},
                                                     {"top_p", "-1"},
                                                     {"top_p", "1.0001"},
                                                     {"top_k", "-2"},
                                                     {"top_k", "1.5"},
                                                     {"min_p", "-0.1"},
                                                     {"min_p", "1.1"},
                                                     {"repetition_penalty", "0"},
                                                     {"repetition_penalty", "-1"},
                                                     {"repetition_penalty", "1e30"},
                                                     {"frequency_penalty", "2.1"},
                                                     {"presence_penalty", "-2.1"},
                                                     {"seed", "1.5"},
                                                     {"seed", "9223372036854775808"},
                                                     {"max_tokens", "-1"},
                                                     {"max_tokens", "1.5"},
                                                     {"max_tokens", "99999999999"},
                                                     {"n", "0"},
                                                     {"n", "129"},
                                                     {"n", "2147483647"},
                                                     {"stream", "1"},
                                                     {"ignore_eos", "\"no\""},
                                                     {"min_tokens", "-1"},
                                                     {"stop", "\"\""},
                                                     {"stop", "[1,2]"},
                                                     {"stop", "[\"\"]"},
                                                     {"stop", "{}"},
                                                     {"stop_token_ids", "[100,-5]"},
                                                     {"stop_token_ids", "5"},
                                                     {"logit_bias", "[]"},
                                                     {"logit_bias", "{\"x\":1}"},
                                                     {"logit_bias", "{\"100\":1}"},
                                                     {"logit_bias", "{\"1\":1,\"1\":2}"},
                                                     {"stream_options", "true"},
                                                     {"model", "5"}};
  for (const auto& [name, value] : bad) {
    const std::string member = std::string("\"") + name + "\":" + value;
    EXPECT_EQ(refused_completion(completion(member)), name) << member;
    EXPECT_EQ(refused_chat(chat(member)), name) << member;
  }
  EXPECT_EQ(refused_chat(chat(R"("logit_bias":{"5":101})")), "logit_bias.5");
  EXPECT_EQ(refused_chat(chat(R"("stream_options":{"include_usage":1})")), "stream_options.include_usage");
}

TEST(Members, GoodValuesArrive) {
  const GenerationOptions o =
      completion_of(R"("temperature":0,"top_p":0,"top_k":-1,"min_p":1,"seed":-1,"stop":["a","b"],
      "stop_token_ids":[2],"logit_bias":{"73":100},"max_tokens":0,"n":3,"stream":true,"stream_options":{"include_usage":true},
      "ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false,"return_token_ids":true)")
          .options;
  EXPECT_EQ(o.temperature, 0.0f);
  EXPECT_EQ(o.top_k, 0);
  EXPECT_EQ(o.seed, UINT64_MAX);
  EXPECT_THAT(o.stop, testing::ElementsAre("a", "b"));
  EXPECT_THAT(o.logit_bias, testing::ElementsAre(testing::Pair(73, 100.0f)));
  EXPECT_EQ(o.max_tokens, 0);
  EXPECT_EQ(o.n, 3);
  EXPECT_TRUE(o.stream && o.include_usage && o.ignore_eos && o.include_stop_text && o.show_control &&
              o.return_token_ids);
}

TEST(Members, PriorityIsALaneOrVllmsInteger) {
  EXPECT_FALSE(completion_of("").options.lane);
  EXPECT_EQ(completion_of(R"("priority":"interactive")").options.lane, Lane::interactive);
  EXPECT_EQ(completion_of(R"("priority":"standard")").options.lane, Lane::standard);
  EXPECT_EQ(completion_of(R"("priority":"batch")").options.lane, Lane::batch);
  EXPECT_EQ(completion_of(R"("priority":-3)").options.lane, Lane::interactive);
  EXPECT_FALSE(completion_of(R"("priority":0)").options.lane);
  EXPECT_EQ(completion_of(R"("priority":7)").options.lane, Lane::batch);
  for (const char* bad : {R"("urgent")", R"("")", R"("Batch")", "1.5", "true", "[]", "18446744073709551615"}) {
    const std::string member = std::string(R"("priority":)") + bad;
    EXPECT_EQ(refused_chat(chat(member)), "priority") << bad;
    EXPECT_EQ(refused_completion(completion(member)), "priority") << bad;
  }
}

TEST(Members, CacheSaltsAreDigests) {
  using Salt = std::array<uint64_t, 2>;
  const auto salt = [](const std::string& word) {
    return completion_of(R"("cache_salt":")" + word + "\"").options.cache_salt;
  };
  EXPECT_EQ(completion_of("").options.cache_salt, Salt{});
  EXPECT_EQ(salt(""), Salt{});
  EXPECT_NE(salt("a"), Salt{});
  EXPECT_EQ(salt("a"), salt("a"));
  EXPECT_NE(salt("a"), salt("b"));
  EXPECT_NE(salt(std::string(256, 'x')), salt(std::string(255, 'x')));
  EXPECT_EQ(refused_chat(chat(R"("cache_salt":")" + std::string(257, 'x') + "\"")), "cache_salt");
  EXPECT_EQ(refused_chat(chat(R"("cache_salt":5)")), "cache_salt");
}

TEST(Members, NullMeansNotGiven) {
  const ChatRequest r =
      chat_of(R"("temperature":null,"stop":null,"tools":null,"tool_choice":null,"top_p":null,"seed":null,
      "logit_bias":null,"response_format":null,"stream":null,"stream_options":null,"n":null,"max_tokens":null)");
  EXPECT_FALSE(r.options.temperature);
  EXPECT_FALSE(r.options.max_tokens);
  EXPECT_EQ(r.options.n, 1);
}

TEST(Members, UnknownOnesAreIgnored) {
  chat_of(
      R"("foo":1,"metadata":{"a":"b"},"store":false,"user":"u1","service_tier":"auto","parallel_tool_calls":true)");
}

TEST(Members, OnesThatWouldChangeTheResultAreRefused) {
  for (const char* member :
       {R"("suffix":"x")", R"("audio":{"voice":"v"})", R"("functions":[{"name":"f"}])",
        R"("tool_choice":"required")", R"("guided_whitespace_pattern":" ")", R"("chat_template":"{{ 1 }}")",
        R"("use_beam_search":true)", R"("modalities":["audio"])"}) {
    const std::string name = std::string(member).substr(1, std::string(member).find('"', 1) - 1);
    EXPECT_EQ(refused_chat(chat(member)), name);
    EXPECT_EQ(refused_completion(completion(member)), name);
  }
  chat_of(
      R"("tools":[],"tool_choice":"none","response_format":{"type":"text"},"modalities":["text"],"suffix":"","use_beam_search":false)");
}

TEST(Members, OnesGivenTwiceAreRefused) {
  EXPECT_EQ(refused_completion(completion(R"("n":1,"n":2)")), "n");
  EXPECT_EQ(refused_chat(R"({"messages":[{"role":"user","role":"system","content":"x"}]})"),
            "messages[0].role");
}

TEST(CompletionRequest, BestOfAndLogprobs) {
  EXPECT_EQ(refused_completion(completion(R"("best_of":21)")), "best_of");
  EXPECT_EQ(refused_completion(completion(R"("best_of":2,"n":3)")), "best_of");
  EXPECT_EQ(refused_completion(completion(R"("best_of":2,"stream":true)")), "best_of");
  EXPECT_EQ(refused_completion(completion(R"("best_of":2,"n":2,"stream":true)")), "best_of");
  completion_of(R"("best_of":1)");
  EXPECT_EQ(refused_completion(completion(R"("logprobs":21)")), "logprobs");
  EXPECT_EQ(refused_completion(completion(R"("logprobs":true)")), "logprobs");
  EXPECT_EQ(completion_of(R"("logprobs":0)").logprobs, 0);
  EXPECT_EQ(refused_completion(R"({"prompt":["a","b","c"],"n":128})"), "n");
}

TEST(Stop, IsBounded) {
  std::string many = "[\"a\"";
  for (int i = 0; i < 100000; ++i) many += ",\"x" + std::to_string(i) + "\"";
  EXPECT_EQ(refused_chat(chat("\"stop\":" + many + "]")), "stop");
  EXPECT_EQ(refused_chat(chat("\"stop\":[\"" + std::string(1000000, 'y') + "\"]")), "stop");
  chat_of(R"("stop":[])");
  chat_of(R"("stop":["a","b","c","d","e"])");
}

TEST(ChatRequest, NamesTheMemberOfTheMessage) {
  const std::pair<const char*, const char*> bad[] = {
      {"[]", "messages"},
      {R"({"role":"user","content":"x"})", "messages"},
      {R"(["x"])", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"wizard","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":"x"},{"role":"assistant","content":null}])", "messages[1].content"},
      {R"([{"role":"user","content":[]}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}])",
       "messages[0].content[1].text"},
      {R"([{"role":"user","content":["a"]}])", "messages[0].content[0]"}};
  for (const auto& [messages, field] : bad) {
    EXPECT_EQ(refused_chat(std::string(R"({"messages":)") + messages + "}"), field) << messages;
  }
  EXPECT_EQ(refused_chat("{}"), "messages");
  EXPECT_EQ(refused_chat(R"({"model":"m"})"), "messages");
}

TEST(ChatRequest, MessagesStayAsTheyAreButForTheRoleDeveloper) {
  auto r = parse_chat_request(
      R"({"messages":[{"role":"developer","content":"d"},{"role":"user","name":"n","content":[{"type":"text","text":"a\n"}]},
          {"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"r","tool_call_id":"c"}]})",
      kBounds);
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(
      r->messages,
      R"([{"role":"system","content":"d"},{"role":"user","name":"n","content":[{"type":"text","text":"a\n"}]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"r","tool_call_id":"c"}])");
}

TEST(ChatRequest, Options) {
  EXPECT_EQ(refused_chat(chat(R"("top_logprobs":3)")), "top_logprobs");
  EXPECT_EQ(refused_chat(chat(R"("logprobs":true,"top_logprobs":21)")), "top_logprobs");
  EXPECT_EQ(refused_chat(chat(R"("logprobs":3)")), "logprobs");
  EXPECT_EQ(chat_of(R"("logprobs":true,"top_logprobs":3)").top_logprobs, 3);
  EXPECT_EQ(chat_of(R"("max_tokens":5,"max_completion_tokens":7)").options.max_tokens, 7);
  EXPECT_EQ(refused_chat(chat(R"("chat_template_kwargs":{"chat_template":"{{ 1 }}"})")),
            "chat_template_kwargs.chat_template");
  EXPECT_EQ(chat_of(R"("chat_template_kwargs":{"enable_thinking":false})").template_arguments,
            R"({"enable_thinking":false})");
  EXPECT_TRUE(chat_of("").continue_final_message);
  EXPECT_TRUE(chat_of(R"("continue_final_message":false)").continue_final_message);
  EXPECT_FALSE(chat_of(R"("add_generation_prompt":true)").continue_final_message);
  EXPECT_FALSE(chat_of(R"("add_generation_prompt":false)").add_generation_prompt);
  EXPECT_EQ(refused_chat(chat(R"("add_generation_prompt":true,"continue_final_message":true)")),
            "continue_final_message");
}

TEST(Sampling, RequestThenModelThenOpenAi) {
  GenerationOptions o;
  GenerationDefaults d;
  EXPECT_EQ(sampling_of(o, d, 100).temperature, 1.0f);
  d.temperature = 0.3f;
  d.top_k = 5;
  EXPECT_EQ(sampling_of(o, d, 100).temperature, 0.3f);
  EXPECT_EQ(sampling_of(o, d, 100).top_k, 5);
  o.temperature = 0.0f;
  o.top_k = 1000;
  EXPECT_EQ(sampling_of(o, d, 100).temperature, 0.0f);
  EXPECT_EQ(sampling_of(o, d, 100).top_k, 0);
}

TEST(Sampling, ChoicesHaveSeedsOfTheirOwn) {
  EXPECT_EQ(choice_seed(42, 0), 42u);
  EXPECT_NE(choice_seed(42, 1), choice_seed(42, 2));
  EXPECT_EQ(choice_seed(42, 2), choice_seed(42, 2));
}

}  // namespace
}  // namespace sluice
