// load_model on the real files: what comes out answers, and what is wrong is said in one line.
#include "engine/served_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/test_client.h"

namespace sluice {
namespace {

std::string model_file(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/models/" + name; }
std::string tiny(const std::string& name) {
  return std::string(SLUICE_SOURCE_DIR) + "/../shared/cases/tiny/" + name;
}

LoadOptions options(const std::string& path) {
  LoadOptions o;
  o.path = path;
  o.cpu.threads = 2;
  o.engine.max_sequences = 4;
  o.engine.step_tokens = 64;
  o.engine.max_context = 512;
  return o;
}

std::string error_of(const LoadOptions& o) {
  const auto loaded = load_model(o, {});
  EXPECT_FALSE(loaded.ok());
  const std::string message = loaded.ok() ? "" : loaded.error().message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

TEST(LoadModel, BesideAnotherModelWhatDoesNotFitIsRefused) {
  LoadOptions o = options(model_file("SmolLM2-135M-Instruct.Q4_1.gguf"));
  o.engine.promised_bytes = SIZE_MAX;  // to the other one: nothing is free
  o.beside = true;
  EXPECT_NE(error_of(o).find("beside what is served here, and 0.00 are free"), std::string::npos);
}

TEST(LoadModel, SmolLm2Answers) {
  std::vector<std::string> phases;
  const auto loaded =
      load_model(options(model_file("SmolLM2-135M-Instruct.Q4_1.gguf")), [&](const std::string& phase, double) {
        if (phases.empty() || phases.back() != phase) phases.push_back(phase);
      });
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  ServedModel& model = **loaded;
  EXPECT_EQ(phases, (std::vector<std::string>{"read header", "tokenizer", "weights", "kv", "warm-up"}));
  EXPECT_EQ(model.name(), "SmolLM2-135M-Instruct.Q4_1");
  EXPECT_EQ(model.engine().info().end_ids.empty(), false);
  ASSERT_NE(model.chat_template(), nullptr);

  const auto prompt = model.chat_template()->render(
      {.messages_json = R"([{"role": "user", "content": "What is the capital of France? One word."}])"});
  ASSERT_TRUE(prompt.ok());
  Request r;
  r.prompt = model.tokenizer().encode(*prompt, true, true);
  r.max_tokens = 12;
  r.sampling.temperature = 0;
  TestClient client(model.engine(), r);
  client.finish();
  EXPECT_NE(model.tokenizer().decode(client.ids).find("Paris"), std::string::npos)
      << model.tokenizer().decode(client.ids);
}

TEST(LoadModel, AFolderWithItsSideFiles) {
  const auto loaded = load_model(options(tiny("llama-tied") + "/"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  ServedModel& model = **loaded;
  EXPECT_EQ(model.name(), "llama-tied");
  ASSERT_NE(model.chat_template(), nullptr);
  EXPECT_EQ(model.engine().info().end_ids, std::vector<int32_t>{1});
  EXPECT_EQ(model.engine().info().context, 512);
}

// The tiny model with one side file replaced by another text.
TEST(LoadModel, SideFilesThatMakeNoSenseAreNamed) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("sluice_side_files_" + std::to_string(getpid()));
  const auto read = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const auto with = [&](const char* name, const std::string& from, const std::string& to) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const auto& entry : fs::directory_iterator(tiny("llama-tied")))
      if (entry.path().filename() != name) fs::create_symlink(entry.path(), folder / entry.path().filename());
    std::string text = read(fs::path(tiny("llama-tied")) / name);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    std::ofstream(folder / name, std::ios::binary) << text.replace(at, from.size(), to);
    const auto loaded = load_model(options(folder.string()), {});
    return loaded.ok() ? std::string() : loaded.error().message;
  };
  const std::string eos = "\"eos_token_id\": 1", added = "\"added_tokens\": [";
  for (const char* name : {"config.json", "generation_config.json"}) {
    for (const char* wrong : {"\"1\"", "-1", "384", "[1, 999]"}) {
      const std::string message = with(name, eos, std::string("\"eos_token_id\": ") + wrong);
      EXPECT_NE(message.find(std::string(name) + ": key 'eos_token_id'"), std::string::npos) << message;
    }
    EXPECT_EQ(with(name, eos, "\"eos_token_id\": null"), "");
    EXPECT_EQ(with(name, eos, "\"eos_token_id\": [1, 383]"), "");
  }
  EXPECT_EQ(with("tokenizer.json", added, added + R"({"id": 384, "content": "<|image|>", "special": true},)"),
            "");
  EXPECT_NE(with("tokenizer.json", added, added + R"({"id": 9999, "content": "<|x|>", "special": true},)")
                .find("tokenizer.json: the tokenizer has ids up to 9999"),
            std::string::npos);
  const std::string broken = with("tokenizer.json", "{", "");
  EXPECT_NE(broken.find("tokenizer.json: not valid JSON"), std::string::npos) << broken;
  EXPECT_EQ(broken.find("tokenizer.json"), broken.rfind("tokenizer.json")) << broken;
  fs::remove_all(folder);
}

TEST(LoadModel, WhatIsWrongIsNamed) {
  LoadOptions o = options(model_file("SmolLM2-135M-Instruct.Q4_1.gguf"));
  o.device = "cuda:99";  // the build, the machine, or the number: whichever is missing
  EXPECT_NE(error_of(o).find("cuda:"), error_of(o).find("use --device cpu")) << error_of(o);
  for (const char* device : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "cuda0"}) {
    o.device = device;
    EXPECT_NE(error_of(o).find("unknown device"), std::string::npos) << device;
  }
  o.device = "tpu";
  EXPECT_NE(error_of(o).find("tpu"), std::string::npos);
  EXPECT_NE(error_of(options("/nowhere/model.gguf")).find("/nowhere/model.gguf"), std::string::npos);

  LoadOptions broken = options(tiny("llama-tied"));
  const std::string file = testing::TempDir() + "sluice_unclosed.jinja";
  std::ofstream(file) << "{% for m in messages %}{{ m.content }}";
  broken.chat_template_file = file;
  EXPECT_NE(error_of(broken).find("sluice_unclosed.jinja"), std::string::npos);
  std::filesystem::remove(file);

  LoadOptions tight = options(tiny("llama-tied"));
  tight.engine.kv_bytes = 100;
  EXPECT_NE(error_of(tight).find("keys and values"), std::string::npos);
  LoadOptions one = options(tiny("llama-tied"));
  one.engine.max_context = 1;
  EXPECT_NE(error_of(one).find("must be 0 or at least 16"), std::string::npos);
  one.engine.max_context = 5000;
  EXPECT_NE(error_of(one).find("more than the 4096"), std::string::npos);
  LoadOptions zero = options(tiny("llama-tied"));
  zero.engine.max_sequences = -1;
  EXPECT_NE(error_of(zero).find("must be at least 1, not -1"), std::string::npos);
}

}  // namespace
}  // namespace sluice
