#include "cli/config.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>

#include <fstream>
#include <set>

namespace sluice::cli {
namespace {

class ConfigFile : public testing::Test {
 protected:
  ~ConfigFile() override { std::filesystem::remove(path_); }

  Status load(const std::string& text) {
    std::ofstream(path_) << text;
    return load_config_file(config_, path_);
  }
  std::string error(const std::string& text) {
    const Status status = load(text);
    return status.ok() ? "no error" : status.error().message.substr(path_.size() + 1);
  }

  std::string path_ = testing::TempDir() + "sluice_config_" + std::to_string(getpid()) + ".yaml";
  Config config_;
};

TEST_F(ConfigFile, SetsWhatItNamesAndNothingElse) {
  ASSERT_TRUE(
      load("server:\n  port: 9000\n  api_keys: [a, b]\nengine:\n  kv_bytes: 5000000000\nlog:\n  json: "
           "true\ndevice: cpu\n"));
  EXPECT_EQ(config_.server.port, 9000);
  EXPECT_EQ(config_.server.api_keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config_.model.engine.kv_bytes, 5000000000u);
  EXPECT_TRUE(config_.log_json);
  EXPECT_EQ(config_.model.device, "cpu");
  EXPECT_EQ(config_.server.host, Config().server.host);
}

TEST_F(ConfigFile, EmptyIsFine) {
  EXPECT_TRUE(load(""));
  EXPECT_TRUE(load("# nothing\n"));
}

TEST_F(ConfigFile, UnknownKeysAreRefusedWithLineAndNearestName) {
  EXPECT_EQ(error("server:\n  prot: 1\n"), "2: unknown key 'server.prot'; did you mean 'server.port'?");
  EXPECT_EQ(error("\n\nport: 1\n"), "3: unknown key 'port'; did you mean 'server.port'?");
  EXPECT_EQ(error("enigne:\n  max_sequences: 4\n"),
            "1: unknown key 'enigne.max_sequences'; did you mean 'engine.max_sequences'?");
  EXPECT_EQ(error("zzzzzzzzzzzzzz: 1\n"), "1: unknown key 'zzzzzzzzzzzzzz'");
  EXPECT_EQ(error("inference:\n  dynamic_batching:\n    enable: true\n"),
            "3: unknown key 'inference.dynamic_batching.enable'; did you mean "
            "'inference.dynamic_batching.enabled'?");
}

TEST_F(ConfigFile, WrongValuesAreNamed) {
  EXPECT_EQ(error("server:\n  port: http\n"),
            "2: server.port: expected an integer from 0 to 65535, got 'http'");
  EXPECT_EQ(error("server:\n  port: 65536\n"),
            "2: server.port: expected an integer from 0 to 65535, got '65536'");
  EXPECT_EQ(error("server:\n  port: 99999999999999999999\n"),
            "2: server.port: expected an integer from 0 to 65535, got '99999999999999999999'");
  EXPECT_EQ(error("engine:\n  kv_bytes: -1\n"),
            "2: engine.kv_bytes: expected an integer of at least 0, got '-1'");
  EXPECT_EQ(
      error("engine:\n  kv_bytes: 99999999999999999999\n"),
      "2: engine.kv_bytes: expected an integer of at most 9223372036854775807, got '99999999999999999999'");
  EXPECT_EQ(error("engine:\n  kv_bytes: -99999999999999999999\n"),
            "2: engine.kv_bytes: expected an integer of at least 0, got '-99999999999999999999'");
  EXPECT_EQ(error("kv:\n  sliding_window: 2147483648\n"),
            "2: kv.sliding_window: expected an integer of at most 2147483647, got '2147483648'");
  EXPECT_EQ(error("log:\n  json: yes\n"), "2: log.json: expected true or false, got 'yes'");
  EXPECT_EQ(error("log:\n  level: loud\n"),
            "2: log.level: expected one of debug, info, warn, error, off, got 'loud'");
  EXPECT_EQ(error("server:\n  port: [1]\n"), "2: server.port: expected one value");
  EXPECT_EQ(error("server:\n  api_keys: {a: b}\n"), "2: server.api_keys: expected a list of texts");
}

TEST_F(ConfigFile, WrongShapesAreNamed) {
  EXPECT_EQ(error("- a\n- b\n"), "1: expected keys and values");
  EXPECT_EQ(error("server: 8000\n"), "1: server: expected keys and values");
  EXPECT_EQ(error("server:\n  port: 1\n  port: 2\n"), "3: 'server.port' is given twice");
  EXPECT_TRUE(error("server: {port: 1\n").starts_with("2: ")) << error("server: {port: 1\n");
}

TEST_F(ConfigFile, DynamicBatchingIsReadAsWritten) {
  const BatchingSettings defaults = config_.model.engine.batching;
  EXPECT_EQ(defaults.policy, "");
  EXPECT_FALSE(defaults.dynamic.enabled);
  EXPECT_EQ(defaults.dynamic.max_batch_size, 32);
  EXPECT_EQ(defaults.dynamic.batch_wait_timeout_ms, 15);
  ASSERT_TRUE(
      load("inference:\n  dynamic_batching:\n    enabled: true\n    max_batch_size: 16\n    "
           "batch_wait_timeout_ms: 5\n"));
  const BatchingSettings& read = config_.model.engine.batching;
  EXPECT_TRUE(read.dynamic.enabled);
  EXPECT_EQ(read.dynamic.max_batch_size, 16);
  EXPECT_EQ(read.dynamic.batch_wait_timeout_ms, 5);
  EXPECT_EQ(read.window, defaults.window);
}

TEST_F(ConfigFile, TheSlidingWindowIsReadAsWritten) {
  const auto& window = config_.model.engine.batching.window;
  EXPECT_EQ(window, (BatchingSettings::Window{200, 128, 50, 100}));
  ASSERT_TRUE(
      load("scheduler:\n  policy: windowed\n  window: {window_ms: 20, max_batch_size: 12, "
           "min_trigger_interval_ms: 5, batch_timeout_ms: 10}\n"));
  EXPECT_EQ(config_.model.engine.batching.policy, "windowed");
  EXPECT_EQ(window, (BatchingSettings::Window{20, 12, 5, 10}));
  EXPECT_EQ(error("scheduler:\n  policy: random\n"),
            "2: scheduler.policy: expected one of continuous, windowed, serial, got 'random'");
  EXPECT_EQ(error("scheduler:\n  window:\n    window_ms: 0\n"),
            "3: scheduler.window.window_ms: expected an integer from 1 to 60000, got '0'");
}

TEST_F(ConfigFile, MissingFileIsNamed) {
  EXPECT_EQ(load_config_file(config_, "/nowhere/sluice.yaml").error().message,
            "/nowhere/sluice.yaml: cannot be read");
}

TEST_F(ConfigFile, PrintedConfigReadsBackAsItself) {
  config_.server.port = 1234;
  config_.model.path = "a \"quoted\" path";
  config_.model.cpu.instruction_set = "avx2";
  config_.model.engine.batching.dynamic.max_batch_size = 7;
  const std::string printed = print_config(config_);
  config_ = Config();
  ASSERT_TRUE(load(printed));
  EXPECT_EQ(config_.server.port, 1234);
  EXPECT_EQ(config_.model.path, "a \"quoted\" path");
  EXPECT_EQ(config_.model.cpu.instruction_set, "avx2");
  EXPECT_EQ(config_.model.engine.batching.dynamic.max_batch_size, 7);
  EXPECT_NE(printed.find("\ninference:\n  dynamic_batching:\n    enabled: false"), std::string::npos)
      << printed;
  EXPECT_EQ(print_config(config_), printed);
}

TEST(ConfigKeys, SecretsAreNotPrinted) {
  Config config;
  config.server.api_keys = {"hush"};
  EXPECT_EQ(print_config(config).find("hush"), std::string::npos);
}

TEST(ConfigKeys, EveryDefaultPassesItsOwnCheckAndNamesAreUnique) {
  std::set<std::string> names;
  for (const Key& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_TRUE(std::string_view(key.help).ends_with('.')) << key.name;
    Config config;
    const KeySlot slot = key.slot(config);
    std::string text;
    if (auto* v = std::get_if<int*>(&slot))
      text = std::to_string(**v);
    else if (auto* n = std::get_if<size_t*>(&slot))
      text = std::to_string(**n);
    else if (auto* x = std::get_if<double*>(&slot))
      text = std::to_string(**x);
    else if (auto* s = std::get_if<std::string*>(&slot))
      text = **s;
    else
      continue;
    const Status status = set_key(config, key.name, text);
    EXPECT_TRUE(status.ok()) << key.name;
  }
}

TEST(ConfigKeys, SchemaListsEveryKey) {
  const std::string schema = print_schema();
  for (const Key& key : config_keys()) {
    const std::string name = key.name;
    EXPECT_NE(schema.find('"' + name.substr(name.rfind('.') + 1) + '"'), std::string::npos) << name;
  }
}

TEST(NearestName, OnlyWhatIsNear) {
  const std::vector<std::string> known = {"serve", "run", "chat"};
  EXPECT_EQ(nearest_name("srve", known), "serve");
  EXPECT_EQ(nearest_name("cat", known), "chat");
  EXPECT_EQ(nearest_name("quantize", known), "");
}

}  // namespace
}  // namespace sluice::cli
