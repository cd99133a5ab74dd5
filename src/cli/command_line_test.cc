#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "cli/signals.h"

namespace sluice::cli {
namespace {

std::variant<CommandLine, int> parse(std::vector<std::string> words) {
  words.insert(words.begin(), "sluice");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  return parse_command_line(int(argv.size()), argv.data());
}

CommandLine good(const std::vector<std::string>& words) {
  std::variant<CommandLine, int> parsed = parse(words);
  if (int* status = std::get_if<int>(&parsed)) {
    ADD_FAILURE() << "exit status " << *status;
    return {};
  }
  return std::get<CommandLine>(std::move(parsed));
}

// The exit status, and the one line on stderr.
std::pair<int, std::string> bad(const std::vector<std::string>& words) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  std::variant<CommandLine, int> parsed = parse(words);
  testing::internal::GetCapturedStdout();
  const std::string said = testing::internal::GetCapturedStderr();
  const int* status = std::get_if<int>(&parsed);
  return {status ? *status : -1, said};
}

// A reload is for the log to speak of.
TEST(CommandLine, ReadAgainItSaysNothingItself) {
  const auto again = [](std::vector<std::string> words) {
    words.insert(words.begin(), "sluice");
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    testing::internal::CaptureStderr();
    Result<Config> read = reread_settings(int(argv.size()), argv.data());
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    return read;
  };
  const Result<Config> good = again({"serve", "m.gguf", "--max-queue", "7"});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->model.engine.max_queue, 7);
  EXPECT_FALSE(again({"serve", "m.gguf", "--set", "scheduler.target_itl_ms=-1"}).ok());
  EXPECT_FALSE(again({"serve", "m.gguf", "--config", "/nonexistent.yaml"}).ok());
  EXPECT_FALSE(again({"serve", "--no-such-flag"}).ok());
}

TEST(Signals, TheSameWishTwiceIsNoImpatience) {
  EXPECT_FALSE(is_impatient(0, 5)) << "the first";
  EXPECT_FALSE(is_impatient(1000, 1000 + kSameWishNs - 1));
  EXPECT_TRUE(is_impatient(1000, 1000 + kSameWishNs));
}

TEST(Signals, TheSameWishDoesNotKillWhatIsEndingAlready) {
  const auto end_after_a_signal = [] {
    {
      const Signals signals(Signals::Watch::both);
      std::raise(SIGTERM);
    }
    std::raise(SIGTERM);
    _exit(0);
  };
  EXPECT_EXIT(
      end_after_a_signal(), [](int status) { return WIFEXITED(status); }, "");
}

TEST(CommandLine, ServeFlagsSetKeys) {
  const CommandLine line =
      good({"serve",     "m.gguf",   "--host",       "::1",   "--port",          "0",
            "--threads", "3",        "--ctx",        "2048",  "--max-sequences", "7",
            "--kv-gib",  "1.5",      "--model-name", "x",     "--api-key",       "a",
            "--api-key", "b",        "--log-level",  "warn",  "--log-json",      "--chat-template",
            "t.jinja",   "--device", "cpu",          "--set", "server.max_n=5"});
  EXPECT_EQ(line.command, Command::serve);
  EXPECT_EQ(line.config.model.path, "m.gguf");
  EXPECT_EQ(line.config.server.host, "::1");
  EXPECT_EQ(line.config.server.port, 0);
  EXPECT_EQ(line.config.model.cpu.threads, 3);
  EXPECT_EQ(line.config.model.engine.max_context, 2048);
  EXPECT_EQ(line.config.model.engine.max_sequences, 7);
  EXPECT_EQ(line.config.model.engine.kv_bytes, size_t(3) << 29);
  EXPECT_EQ(line.config.server.model_name, "x");
  EXPECT_EQ(line.config.server.api_keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(line.config.log_level, "warn");
  EXPECT_TRUE(line.config.log_json);
  EXPECT_EQ(line.config.model.chat_template_file, "t.jinja");
  EXPECT_EQ(line.config.server.max_n, 5);
}

TEST(CommandLine, FlagsOfACard) {
  const CommandLine plain = good({"serve", "m.gguf"});
  EXPECT_TRUE(plain.config.model.engine.graphs);
  EXPECT_EQ(plain.config.model.engine.gpu_memory_fraction, 0.9);
  const CommandLine line = good({"serve", "m.gguf", "--no-graphs", "--gpu-memory-fraction", "0.25"});
  EXPECT_FALSE(line.config.model.engine.graphs);
  EXPECT_EQ(line.config.model.engine.gpu_memory_fraction, 0.25);
  EXPECT_TRUE(good({"serve", "m.gguf", "--set", "engine.graphs=false", "--graphs"}).config.model.engine.graphs);
}

TEST(CommandLine, LaterFlagWins) {
  EXPECT_EQ(good({"serve", "m", "--port", "1", "--port", "2"}).config.server.port, 2);
}

TEST(CommandLine, EnvironmentAddsAKey) {
  setenv("SLUICE_API_KEY", "from-env", 1);
  EXPECT_EQ(good({"doctor"}).doctor.api_key, "from-env");
  EXPECT_EQ(good({"bench", "serve", "--url", "http://h", "--concurrency", "1"}).bench_serve.api_key,
            "from-env");
  EXPECT_EQ(good({"bench", "serve", "--url", "http://h", "--concurrency", "1", "--api-key", "flag"})
                .bench_serve.api_key,
            "flag");
  EXPECT_EQ(good({"serve", "m"}).config.server.api_keys, std::vector<std::string>{"from-env"});
  EXPECT_EQ(good({"serve", "m", "--set", "server.api_keys=[a, 'b c']"}).config.server.api_keys,
            (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(good({"serve", "m", "--set", "server.api_keys=a,b"}).config.server.api_keys,
            std::vector<std::string>{"a,b"});
  unsetenv("SLUICE_API_KEY");
}

TEST(CommandLine, BenchEngineTakesLists) {
  const CommandLine line = good({"bench", "engine", "m", "--batch", "1,4,16", "--depth", "0,1024",
                                 "--prompt-tokens", "512,64", "--json"});
  EXPECT_EQ(line.command, Command::bench_engine);
  EXPECT_EQ(line.bench_engine.batch, (std::vector<int>{1, 4, 16}));
  EXPECT_EQ(line.bench_engine.depth, (std::vector<int>{0, 1024}));
  EXPECT_EQ(line.bench_engine.prompt_tokens, (std::vector<int>{512, 64}));
  EXPECT_TRUE(line.bench_engine.json);
}

TEST(CommandLine, WrongUseIsTwoAndOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"srve"}, "no command named 'srve'; did you mean 'serve'?"},
      {{"serve"}, "MODEL is required"},
      {{"serve", "m", "--port", "70000"}, "--port: expected an integer from 0 to 65535, got '70000'"},
      {{"serve", "m", "--port", "x"}, "--port: expected"},
      {{"serve", "m", "--log-level", "loud"}, "--log-level: expected one of"},
      {{"serve", "m", "--set", "server.prot=1"}, "did you mean 'server.port'?"},
      {{"serve", "m", "--set", "server.port"}, "expected KEY=VALUE"},
      {{"serve", "m", "--set", "server.api_keys=[a"},
       "--set server.api_keys: expected a list of texts: [A, B]"},
      {{"serve", "m", "--set", "server.api_keys=[[a]]"},
       "--set server.api_keys: expected a list of texts: [A, B]"},
      {{"serve", "m", "--config", "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"},
      {{"serve", "m", "more"}, "more"},
      {{"serve", "m", "--no-such-flag"}, "--no-such-flag"},
      {{"serve", "m", "--prot", "8000"}, "no flag named '--prot'; did you mean --port?"},
      {{"run", "m", "--promt", "x"}, "did you mean --prompt?"},
      {{"serve", "m", "--ctx", "1"}, "engine.max_context (--ctx): 1 tokens are too few; give at least 16"},
      {{"serve", "m", "--set", "engine.max_context=15"}, "engine.max_context (--ctx): 15"},
      {{"serve", "m", "--device", "tpu"}, "device: expected auto, cpu or cuda[:N], got 'tpu'"},
      {{"serve", "m", "--device", "cuda:x"}, "device: expected"},
      {{"serve", "m", "--set", "inference.dynamic_batching.enabled=true", "--set", "scheduler.policy=serial"},
       "scheduler.policy: serial contradicts inference.dynamic_batching.enabled"},
      {{"serve", "m", "--set", "scheduler.policy=windowed", "--max-sequences", "16", "--set",
        "scheduler.window.max_batch_size=17"},
       "scheduler.window.max_batch_size: must be at most engine.max_sequences (16), not 17"},
      {{"serve", "m", "--kv-gib", "nan"}, "--kv-gib: expected a number from 0 to 1000000, got 'nan'"},
      {{"serve", "m", "--kv-gib", "-1"}, "--kv-gib"},
      {{"serve", "m", "--gpu-memory-fraction", "0"},
       "--gpu-memory-fraction: expected a number above 0 and at most 1, got '0'"},
      {{"serve", "m", "--gpu-memory-fraction", "90"}, "--gpu-memory-fraction: expected a number above 0"},
      {{"serve", "m", "--gpu-memory-fraction", "nan"}, "--gpu-memory-fraction: expected a number above 0"},
      {{"serve", "m", "--kv-gib", "1", "--kv-bytes", "5"}, "--kv-bytes"},
      {{"run", "m", "-p", "x", "--top-p", "nan"}, "--top-p"},
      {{"bench", "foo"}, "no command named 'foo'"},
      {{"bench", "engine", "--dummy", "foo"}, "--dummy foo: unknown shape; known: smollm2-135m"},
      {{"run", "m"}, "--prompt"},
      {{"run", "m", "-p", "x", "-n", "0"}, "--max-tokens"},
      {{"bench"}, "subcommand"},
      {{"bench", "engine"}, "give MODEL or --dummy"},
      {{"bench", "engine", "m", "--quant", "fp8"}, "--quant is the format of --dummy SHAPE"},
      {{"serve", "--dummy", "llama-3.1-8b:fp8", "--quant", "fp8"},
       "give --dummy SHAPE:FORMAT or --quant FORMAT, not both"},
      {{"serve", "--dummy", "llama-3.1-8b", "--quant", "e5m2"},
       "--dummy llama-3.1-8b:e5m2: the format must be int4, awq, int8, w8a8, fp8, bf16, f16 or f32"},
      {{"bench", "engine", "m", "--batch", "0"}, "--batch"},
      {{"bench", "serve", "--url", "http://h"}, "give --concurrency or --rate"},
      {{"bench", "serve", "--url", "http://h", "--rate", "1", "--concurrency", "1"}, "--rate"},
      {{"bench", "serve", "--url", "http://h", "--rate", "1", "--input-tokens", "4", "--shared-prefix", "5"},
       "--shared-prefix"},
  };
  for (const auto& [words, message] : cases) {
    const auto [status, said] = bad(words);
    EXPECT_EQ(status, kExitWrongUse) << message;
    EXPECT_NE(said.find(message), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

TEST(CommandLine, HelpIsSuccessWithExamples) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"help"},
                                             {"serve", "--help"},
                                             {"help", "run"},
                                             {"chat", "--help"},
                                             {"inspect", "--help"},
                                             {"bench", "--help"},
                                             {"bench", "engine", "--help"},
                                             {"bench", "serve", "--help"}}) {
    testing::internal::CaptureStdout();
    const std::variant<CommandLine, int> parsed = parse(words);
    const std::string said = testing::internal::GetCapturedStdout();
    ASSERT_TRUE(std::holds_alternative<int>(parsed)) << words[0];
    EXPECT_EQ(std::get<int>(parsed), 0);
    EXPECT_NE(said.find("Examples:"), std::string::npos) << words[0];
  }
}

}  // namespace
}  // namespace sluice::cli
