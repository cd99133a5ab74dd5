#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "text/test_support.h"

namespace sluice {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

ChatTemplate must_create(const std::string& source, const std::string& bos = "",
                         const std::string& eos = "</s>") {
  Result<ChatTemplate> made = ChatTemplate::create(source, bos, eos);
  CHECK(made.ok(), made.ok() ? "" : made.error().message.c_str());
  return std::move(*made);
}

void check_cases(const ChatTemplate& chat, const std::string& file, const Tokenizer& tokenizer) {
  for_each_json_line(case_path("chat/" + file), [&](simdjson::dom::element line) {
    const std::string messages = simdjson::minify(line["request"]["messages"]);
    const Result<std::string> prompt = chat.render({.messages_json = messages});
    simdjson::dom::element expected;
    if (line["prompt"].get(expected) != simdjson::SUCCESS) {
      ASSERT_FALSE(prompt.ok()) << std::string_view(line["id"]);
      EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(prompt.error().message, HasSubstr("must alternate"));
      EXPECT_THAT(prompt.error().message, HasSubstr("(line 15, column 27)"));
      EXPECT_THAT(prompt.error().message, ::testing::Not(HasSubstr("\n")));
      return;
    }
    ASSERT_TRUE(prompt.ok()) << std::string_view(line["id"]) << " " << prompt.error().message;
    EXPECT_EQ(*prompt, std::string_view(expected)) << std::string_view(line["id"]);
    EXPECT_EQ(tokenizer.encode(*prompt, true, true), id_list(line["ids"])) << std::string_view(line["id"]);
  });
}

TEST(ChatTemplate, AgreesWithLlamaCppOnSmolLm2) {
  const std::string source =
      read_gguf_text(source_path("models/SmolLM2-135M-Instruct.Q4_1.gguf")).chat_template;
  check_cases(must_create(source), "SmolLM2-135M-Instruct.given.jsonl", smollm_tokenizer());
}

TEST(ChatTemplate, AgreesWithLlamaCppOnGemma3) {
  const std::string source = read_file(case_path("chat/gemma3-it/template.jinja"));
  check_cases(must_create(source), "gemma3-it/cases.jsonl", gemma_tokenizer());
}

TEST(ChatTemplate, ShippedTemplatesRenderOrRefuseInTheirOwnWords) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_path("third_party/llama_cpp_python/models/templates"))) {
    if (entry.path().extension() != ".jinja") continue;
    ++count;
    const Result<ChatTemplate> chat = ChatTemplate::create(read_file(entry.path()), "<s>", "</s>");
    ASSERT_TRUE(chat.ok()) << entry.path() << chat.error().message;
    const Result<std::string> plain =
        chat->render({.messages_json = R"([{"role":"user","content":"Find me"}])"});
    ASSERT_TRUE(plain.ok()) << entry.path() << plain.error().message;
    EXPECT_THAT(*plain, HasSubstr("Find me")) << entry.path();
    const Result<std::string> parts =
        chat->render({.messages_json = R"([{"role":"user","content":[{"type":"text","text":"Find me"}]}])"});
    ASSERT_TRUE(parts.ok()) << entry.path() << parts.error().message;
    EXPECT_THAT(*parts, HasSubstr("Find me")) << entry.path();
    const Result<std::string> more = chat->render({.messages_json = R"([{"role":"system","content":"S"},
        {"role":"user","content":"one"},{"role":"assistant","content":"two"},{"role":"user","content":"three"}])"});
    if (more.ok()) {
      EXPECT_THAT(*more, HasSubstr("three")) << entry.path();
    } else {
      EXPECT_THAT(more.error().message, HasSubstr("Jinja Exception: ")) << entry.path();
    }
  }
  EXPECT_GE(count, 70);
}

TEST(ChatTemplate, ToolCallArgumentsComeAsTheTemplateWantsThem) {
  const std::string messages =
      R"([{"role":"user","content":"w"},{"role":"assistant","content":null,"tool_calls":
      [{"id":"1","type":"function","function":{"name":"f","arguments":"{\"city\": \"Oslo\"}"}}]}])";
  const char* as_object =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% "
      "endfor %}";
  const char* as_text =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ '' ~ c.function.arguments }}{% endfor %}{% endfor "
      "%}";
  const ChatTemplate object = must_create(as_object), text = must_create(as_text);
  EXPECT_TRUE(object.takes_object_arguments());
  const char* kNone =
      R"([{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":""}}]}])";
  EXPECT_EQ(*object.render({.messages_json = kNone}), "{}");
  EXPECT_FALSE(text.takes_object_arguments());
  EXPECT_EQ(*object.render({.messages_json = messages}), R"({"city": "Oslo"})");
  EXPECT_EQ(*text.render({.messages_json = messages}), R"({"city": "Oslo"})");
}

TEST(ChatTemplate, VariablesToolsAndTokens) {
  const ChatTemplate chat = must_create(
      "{{ bos_token }}{{ eos_token }}{{ mood }}{% if tools %}{{ tools[0].name }}{% endif %}{{ "
      "add_generation_prompt }}",
      "<s>");
  EXPECT_EQ(
      *chat.render({.messages_json = "[]", .tools_json = R"([{"name":"t"}])", .extra_json = R"({"mood":"x"})"}),
      "<s></s>xtTrue");
  EXPECT_EQ(*chat.render({.messages_json = "[]", .add_generation_prompt = false}), "<s></s>False");
  EXPECT_FALSE(chat.renders_tools()) << "calls of the history would be lost";
  const ChatTemplate with_calls = must_create(
      "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name "
      "}}{{ "
      "c.function.arguments | tojson }}{% endfor %}{% endfor %}");
  EXPECT_TRUE(with_calls.renders_tools());
}

TEST(ChatTemplate, LastAssistantMessageStaysOpenUnlessToldOtherwise) {
  const ChatTemplate chat = must_create(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt "
      "%}[assistant]{% endif %}");
  const std::string messages = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b "}])";
  EXPECT_EQ(*chat.render({.messages_json = messages}), "[user]a;[assistant]b ");
  EXPECT_EQ(*chat.render(
                {.messages_json = messages, .add_generation_prompt = false, .continue_last_assistant = false}),
            "[user]a;[assistant]b ;");
}

TEST(ChatTemplate, BadMessagesAreErrors) {
  const ChatTemplate chat = must_create("{% for m in messages %}{{ m.content }}{% endfor %}");
  for (const char* messages :
       {"", "{", "{}", "[1]", "[[]]", R"([{"content":"x"}])", R"([{"role":1,"content":"x"}])",
        "[{\"role\":\"u\xFF\"}]", R"([{"role":"user","content":[{"type":"image_url"}]}])"}) {
    const Result<std::string> out = chat.render({.messages_json = messages});
    EXPECT_FALSE(out.ok()) << messages;
    EXPECT_EQ(out.ok() ? ErrorCode::kInternal : out.error().code, ErrorCode::kInvalidArgument) << messages;
  }
  const std::string deep =
      R"([{"role":"user","content":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}]";
  EXPECT_FALSE(chat.render({.messages_json = deep}).ok());
  EXPECT_FALSE(chat.render({.messages_json = "[]", .extra_json = "[]"}).ok());
  EXPECT_FALSE(chat.render({.messages_json = "[]", .tools_json = "{}"}).ok());
  EXPECT_TRUE(chat.render({.messages_json = "[]"}).ok());
}

TEST(ChatTemplate, ParseErrorsNameThePlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"hello\n {% if x %}abc", "'if' is never closed (line 2, column 2)"},
      {"{% endfor %}", "endfor closes nothing (line 1, column 1)"},
      {"{% if x %}{% endfor %}", "endfor where endif is due (line 1, column 11)"},
      {"x\n\n  {% foo %}", "unknown statement 'foo' (line 3, column 3)"},
      {"{{ x", "Expected }}"},
      {"{# abc", "missing end of comment"},
      {"{{ 'abc", "unexpected end of input"},
      {"{{ 99999999999999999999999 }}", "a number is out of range"},
  };
  for (const auto& [source, message] : cases) {
    const Result<ChatTemplate> made = ChatTemplate::create(source, "", "");
    ASSERT_FALSE(made.ok()) << source;
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().message, HasSubstr(message));
  }
}

std::string repeated(int n, const std::string& text) {
  std::string out;
  while (n-- > 0) out += text;
  return out;
}

TEST(ChatTemplate, NestingIsBoundedBeforeParsing) {
  const int n = 5000;
  const std::string sources[] = {
      "{{ " + repeated(n, "("),
      "{{ " + repeated(n, "not ") + "1 }}",
      "{{ 1" + repeated(n, " + 1") + " }}",
      "{{ f" + repeated(n, "()") + " }}",
      "{{ f" + repeated(n, ".a") + " }}",
      "{{ f" + repeated(n, "|trim") + " }}",
      "{{ " + repeated(n, "1 if 0 else ") + "1 }}",
      "{{ " + repeated(n, "[") + repeated(n, "]") + " }}",
      repeated(n, "{% if 1 %}") + repeated(n, "{% endif %}"),
      "{% if 0 %}" + repeated(n, "{% elif 0 %}") + "{% endif %}",
      repeated(n, "{% set x %}") + repeated(n, "{% endset %}"),
  };
  for (const std::string& source : sources) {
    const Result<ChatTemplate> made = ChatTemplate::create(source, "", "");
    ASSERT_FALSE(made.ok());
    EXPECT_THAT(made.error().message, HasSubstr("nested too deeply"));
  }
  EXPECT_EQ(ChatTemplate::create(std::string(300'000, 'x'), "", "").error().code, ErrorCode::kTooLarge);
}

// Each would hang, crash or exhaust memory in the engine alone.
TEST(ChatTemplate, HostileTemplatesEndInAnError) {
  const std::pair<const char*, const char*> cases[] = {
      {"{% for i in range(10000000000) %}x{% endfor %}", "range()"},
      {"{{ range(0, -9223372036854775807, -1) | length }}", "range()"},
      {"{% for i in range(90000) %}{% for j in range(90000) %}x{% endfor %}{% endfor %}", "rendering"},
      {"{{ 'a' * 100000000000 }}", "string too long"},
      {"{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
       "rendering needs"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
       "rendering needs"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}",
       "rendering needs"},
      {"{% set n = namespace(s=[1]) %}{% for i in range(999) %}{% set n.s = [n.s] %}{% endfor %}",
       "nested too deeply"},
      {"{% set n = namespace() %}{% set n.x = n %}{{ n | tojson }}", "cannot hold itself"},
      {"{% set a = [] %}{{ a.append(a) }}{{ a }}", "cannot hold itself"},
      {"{% set a = [] %}{{ a.append(namespace(b=[a])) }}{{ a == a }}", "cannot hold itself"},
      {"{% set a = [] %}{{ a.append(a.append) }}{{ a | string }}", "functions cannot be stored"},
      {"{% macro f(x) %}{{ f([x, x]) }}{% endmacro %}{{ f(1) }}", "recursion too deep"},
      {"{% set f = 'abc'.replace %}{% call f('a', 'b') %}{% endcall %}", "a call block needs a macro"},
      {"{{ 1 is divisibleby 0 }}", "bad divisor"},
      {"{{ test_is_divisibleby(1, 0) }}", "bad divisor"},
      {"{% set f = test_is_divisibleby %}{% call f(1, 0) %}{% endcall %}", "bad divisor"},
      {"{{ [{'a': 1}] | selectattr('a', 'divisibleby', 0) | list }}", "divisibleby"},
      {"{{ [3, '10', 2, 'b', 1.5, 'a'] | sort }}", "cannot sort"},
      {"{{ ('a\n' * 100000) | indent(4000) }}", "string too long"},
      {"{{ ('a' * 1000000) | replace('a', 'a' * 1000000) | length }}", "string too long"},
      {"{{ range(9000) | join('x' * 100000) }}", "string too long"},
      {"{% set s = ('a' * 1000) | replace('b', 'c') %}{{ (s * 100 + 'b') in (s * 1000) }}", "search too long"},
      {"{{ [1, 2, 3][::9223372036854775807] }}", "out of range"},
      {"{{ [[1]] | tojson(indent=1000000000) }}", "indent"},
      {"{% for 1 in [1] %}{% endfor %}", "Invalid loop variable"},
      {"{% macro 1() %}{% endmacro %}", "Macro name"},
      {"{% break %}", "Break statement"},
  };
  for (const auto& [source, message] : cases) {
    Result<ChatTemplate> made =
        ChatTemplate::create(source, "", "", {.memory_bytes = 64 << 20, .wall_ms = 60'000});
    ASSERT_TRUE(made.ok()) << source << made.error().message;
    const Result<std::string> out = made->render({.messages_json = "[]"});
    ASSERT_FALSE(out.ok()) << source;
    EXPECT_THAT(out.error().message, HasSubstr(message)) << source;
  }
}

TEST(ChatTemplate, QuadraticOperationsOfTheEngineAreLinearHere) {
  EXPECT_EQ(*must_create("{{ ('a' * 300000) | replace('a', 'bb') | length }}").render({.messages_json = "[]"}),
            "600000");
  EXPECT_EQ(*must_create("{{ (' ' * 90000).split(' ') | length }}").render({.messages_json = "[]"}), "90001");
  EXPECT_EQ(*must_create("{{ 'abcabc'.replace('bc', 'x') }}{{ 'ab'.replace('', '-') }}")
                 .render({.messages_json = "[]"}),
            "axax-a-b-");
  EXPECT_EQ(*must_create("{{ 'a,b,,c'.split(',') | join('|') }}{{ 'a b c'.split(' ', 1) | join('|') }}")
                 .render({.messages_json = "[]"}),
            "a|b||ca|b c");
}

TEST(ChatTemplate, OutputAndInputAreBounded) {
  const Result<ChatTemplate> chat =
      ChatTemplate::create("{{ messages[0].content * 10 }}", "", "", {.input_bytes = 100, .output_bytes = 50});
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(chat->render({.messages_json = R"([{"role":"user","content":"aaaaaaaaaa"}])"}).error().code,
            ErrorCode::kTooLarge);
  EXPECT_EQ(*chat->render({.messages_json = R"([{"role":"user","content":"a"}])"}), "aaaaaaaaaa");
  EXPECT_EQ(chat->render({.messages_json = std::string(101, ' ')}).error().code, ErrorCode::kTooLarge);
}

TEST(ChatTemplate, WhatIsKeptIsToldApartByAllThatMakesAPrompt) {
  const ChatTemplate chat = must_create(
      "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ x }}{% if tools %}T{{ tools|length }}{% endif %}"
      "{% if add_generation_prompt %}>{% endif %}");
  const std::string user = R"([{"role":"user","content":"a"}])", other = R"([{"role":"user","content":"b"}])",
                    open = R"([{"role":"assistant","content":"a"}])";
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(*chat.render({.messages_json = user}), "[a]>");
    EXPECT_EQ(*chat.render({.messages_json = other}), "[b]>");
    EXPECT_EQ(*chat.render({.messages_json = user, .add_generation_prompt = false}), "[a]");
    EXPECT_EQ(*chat.render({.messages_json = user, .tools_json = "[1,2]"}), "[a]T2>");
    EXPECT_EQ(*chat.render({.messages_json = user, .extra_json = R"({"x":5})"}), "[a]5>");
    EXPECT_EQ(*chat.render({.messages_json = open}), ">a");
    EXPECT_EQ(*chat.render({.messages_json = open, .continue_last_assistant = false}), "[a]>");
    EXPECT_FALSE(chat.render({.messages_json = "[1]"}).ok());
  }
}

TEST(ChatTemplate, MorePromptsThanAreKeptAreAllRight) {
  const ChatTemplate chat = must_create("{% for m in messages %}{{ m.content }}{% endfor %}");
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 200; ++i) {
      const std::string messages = R"([{"role":"user","content":")" + std::to_string(i) + R"("}])";
      ASSERT_EQ(*chat.render({.messages_json = messages}), std::to_string(i));
    }
    const std::string large(40'000, 'x');
    ASSERT_EQ(*chat.render({.messages_json = R"([{"role":"user","content":")" + large + R"("}])"}), large);
  }
}

TEST(ChatTemplate, RendersFromManyThreads) {
  const ChatTemplate chat = must_create(read_file(case_path("chat/gemma3-it/template.jinja")));
  const std::string messages =
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}])";
  const std::string expected = *chat.render({.messages_json = messages});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) wrong[size_t(t)] += *chat.render({.messages_json = messages}) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

}  // namespace
}  // namespace sluice
