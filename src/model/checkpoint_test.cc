// Whole checkpoints: what opens, what is refused, and that the two formats give the same model.
#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "model/formats/gguf_builder.h"
#include "model/formats/rows.h"
#include "model/formats/safetensors.h"
#include "model/slots.h"
#include "model/test_run.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kTiny = SLUICE_SOURCE_DIR "/../shared/cases/tiny/";

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    dir_ = fs::temp_directory_path() / ("sluice_" + name + "_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  void copy(const std::string& tiny) {
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::remove(dir_ / name);
      fs::copy_file(kTiny + tiny + "/" + name, dir_ / name);
      fs::permissions(dir_ / name, fs::perms::owner_all);
    }
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary | std::ios::trunc) << text;
  }
  std::string read(const std::string& name) {
    std::ifstream in(dir_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read(name);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    write(name, text.replace(at, from.size(), to));
  }
  // The message that refuses the folder; checks that it is one line.
  std::string refusal() {
    const auto r = open_checkpoint(dir_.string());
    if (r) return "it was opened";
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    return r.error().message;
  }

  fs::path dir_;
};

TEST_F(Folder, OpensEveryFamily) {
  for (const char* tiny : {"llama-tied", "llama-untied-llama3rope", "mistral-window", "qwen2-bias-tied",
                           "qwen3-qknorm", "gemma3-local-global"}) {
    copy(tiny);
    const auto r = open_checkpoint(dir_.string() + "/");
    ASSERT_TRUE(r.ok()) << r.error().message;
    for (const Slot& slot : slots_of((*r)->spec())) {
      const auto rows = (*r)->rows(slot.name);
      ASSERT_NE(rows, nullptr) << slot.name;
      EXPECT_EQ(rows->rows(), slot.rows);
      EXPECT_EQ(rows->cols(), slot.cols);
    }
    EXPECT_EQ((*r)->rows("blk.99.attn_q.weight"), nullptr);
    EXPECT_EQ((*r)->gguf(), nullptr);
    EXPECT_TRUE((*r)->side_file("config.json").ok());
    EXPECT_EQ((*r)->side_file("absent.json").error().code, ErrorCode::kNotFound);
    EXPECT_FALSE((*r)->side_file("../config.json").ok());
  }
}

TEST_F(Folder, OtherModelsAreRefusedByName) {
  copy("llama-tied");
  replace("config.json", "\"llama\"", "\"bloom\"");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model_type"), HasSubstr("supported: gemma2, gemma3, llama")));
  copy("qwen3moe");
  replace("config.json", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [1]");
  EXPECT_THAT(refusal(), HasSubstr("'mlp_only_layers': layers without experts are not supported"));
  copy("mixtral-moe");
  replace("config.json", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5");
  EXPECT_THAT(refusal(), HasSubstr("a token cannot have 5 of 4 experts"));
}

TEST_F(Folder, QuantizedLayersAreReadOrRefusedByName) {
  copy("awq-g64");
  const auto r = open_checkpoint(dir_.string());
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ((*r)->rows("blk.0.ffn_down.weight")->format(), (WeightFormat{WeightElement::int4, 64, true}));
  EXPECT_EQ((*r)->rows("output.weight")->format().element, WeightElement::f16);
  size_t layers = 0;
  for (const TensorInfo& t : (*r)->tensors()) {
    if (t.type == "AWQ 4-bit") ++layers;
    EXPECT_THAT(t.name, Not(HasSubstr("qzeros")));
  }
  EXPECT_EQ(layers, 2u * 7);
  EXPECT_TRUE((*open_checkpoint(kTiny + "gptq-actorder"))->tensors()[0].lossy);

  const struct {
    const char *from, *to, *message;
  } settings[] = {
      {"\"awq\"", "\"hqq\"",
       "'quantization_config.quant_method': 'hqq' is not supported (awq, gptq, fp8 and compressed-tensors "
       "are)"},
      {"\"bits\": 4", "\"bits\": 3", "'quantization_config.bits': 3 is not supported"},
      {"\"gemm\"", "\"gemv\"", "'quantization_config.version': layout 'gemv' is not supported"},
      {"\"group_size\": 64", "\"group_size\": 48", "'quantization_config.group_size': 48 is not supported"},
      {"\"group_size\": 64", "\"group_size\": 32",
       "has shape [2, 16], but the model's numbers ask for [4, 16]"},
      {"\"group_size\": 64", "\"group_size\": 96", "cannot be cut into groups of 96"}};
  for (const auto& [from, to, message] : settings) {
    copy("awq-g64");
    replace("config.json", from, to);
    EXPECT_THAT(refusal(), HasSubstr(message));
  }
  copy("awq-g64");
  replace("model.safetensors", "0.mlp.up_proj.qzeros", "0.mlp.up_proj.qzeroz");
  EXPECT_THAT(refusal(), HasSubstr("'model.layers.0.mlp.up_proj.qzeros' is missing"));
  copy("fp8-block128");
  replace("config.json", "128,\n", "64,\n");
  EXPECT_THAT(refusal(), HasSubstr("weight_scale_inv' has shape"));
}

// In a weight's eight bits as in a scale: found as rows are decoded, by the layer's name.
TEST_F(Folder, EightBitFloatsThatAreNoNumbersAreRefused) {
  for (const char* suffix : {".weight", ".weight_scale_inv"}) {
    copy("fp8-block128");
    const auto files = SafetensorsFolder::open(dir_.string());
    ASSERT_TRUE(files.ok());
    std::string bytes = read("model.safetensors");
    const SafetensorsTensor& tensor = *(*files)->tensor(std::string("model.layers.1.mlp.up_proj") + suffix);
    const size_t at =
        bytes.find(std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()));
    ASSERT_NE(at, std::string::npos);
    for (size_t i = 0; i < 4; ++i) bytes[at + i] = '\xff';
    write("model.safetensors", bytes);
    const auto opened = open_checkpoint(dir_.string());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->rows("blk.1.ffn_up.weight")->format(),
              (WeightFormat{WeightElement::fp8, 128, false, 128}));
    const auto backend = make_ref_backend();
    const auto loaded = load_weights(**opened, (*opened)->spec(), *backend, {});
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.error().message,
                AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("values that are not numbers")));
  }
}

// A group's number is an index into scales: one of another layer's memory must not be.
TEST_F(Folder, GroupNumbersAreChecked) {
  copy("gptq-actorder");
  const auto files = SafetensorsFolder::open(dir_.string());
  ASSERT_TRUE(files.ok());
  std::string bytes = read("model.safetensors");
  const SafetensorsTensor& index = *(*files)->tensor("model.layers.1.mlp.down_proj.g_idx");
  const size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(index.data.data()), index.data.size()));
  ASSERT_NE(at, std::string::npos);
  for (const int32_t group : {-1, 8, 1 << 30}) {
    std::memcpy(bytes.data() + at + 40, &group, sizeof group);
    write("model.safetensors", bytes);
    EXPECT_THAT(refusal(), HasSubstr("g_idx' names group " + std::to_string(group) + " of 8"));
  }
}

TEST_F(Folder, MissingAndBrokenPiecesAreNamed) {
  EXPECT_THAT(refusal(), HasSubstr("config.json is missing"));
  copy("llama-tied");
  fs::remove(dir_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("neither model.safetensors nor"));
  copy("llama-tied");
  fs::resize_file(dir_ / "model.safetensors", fs::file_size(dir_ / "model.safetensors") - 1000);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tensor '"), HasSubstr("truncated")));
  write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  EXPECT_THAT(refusal(), HasSubstr("git lfs pull"));
  copy("llama-tied");
  write("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("git lfs pull")));
  copy("llama-tied");
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_THAT(refusal(), HasSubstr("'model.layers.2.input_layernorm.weight' is missing"));
  copy("llama-tied");
  replace("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("'model.layers.1."), HasSubstr("no place")));
  copy("llama-tied");
  replace("config.json", "\"vocab_size\": 384", "\"vocab_size\": 385");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("'model.embed_tokens.weight'"), HasSubstr("[384, 72]"), HasSubstr("[385, 72]")));
  copy("llama-tied");
  replace("config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  EXPECT_THAT(refusal(), HasSubstr("'lm_head.weight' is missing"));
  copy("llama-tied");
  replace("model.safetensors", "\"BF16\"", "\"I16\" ");
  EXPECT_THAT(refusal(), HasSubstr("type 'I16'"));
}

TEST_F(Folder, Shards) {
  copy("llama-tied");
  // One shard that holds everything, by index.
  fs::rename(dir_ / "model.safetensors", dir_ / "model-00001-of-00002.safetensors");
  const std::string one = R"({"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"})";
  write("model.safetensors.index.json", one + "}");
  EXPECT_EQ(refusal(), "it was opened");
  const auto map = [&](const std::string& entry) {
    write("model.safetensors.index.json", one.substr(0, one.size() - 1) + ", " + entry + "}}");
  };
  map(R"("lm_head.weight": "model-00002-of-00002.safetensors")");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("missing")));
  map(R"("lm_head.weight": "model-00001-of-00002.safetensors")");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("'lm_head.weight'"), HasSubstr("not in it")));
  map(R"("lm_head.weight": "../../etc/passwd")");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("'../../etc/passwd'"), HasSubstr("no .safetensors file of this folder")));
  map(R"("lm_head.weight": "/etc/x.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("of this folder"));
  map(R"("lm_head.weight": 3)");
  EXPECT_THAT(refusal(), HasSubstr("must be a string"));
  fs::copy_file(dir_ / "model-00001-of-00002.safetensors", dir_ / "model-00002-of-00002.safetensors");
  map(R"("model.embed_tokens.weight": "model-00002-of-00002.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("in another shard too"));
  write("model.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("weight_map"));
  write("model.safetensors.index.json", "x");
  fs::resize_file(dir_ / "model.safetensors.index.json", 200 << 20);  // sparse
  EXPECT_THAT(refusal(), HasSubstr("209715200 bytes"));
}

TEST_F(Folder, LinksAreFollowedAndDeadOnesNamed) {
  copy("llama-tied");
  fs::create_directory(dir_ / "blobs");
  fs::rename(dir_ / "model.safetensors", dir_ / "blobs" / "0123");
  fs::create_symlink("blobs/0123", dir_ / "model.safetensors");
  EXPECT_EQ(refusal(), "it was opened");
  fs::remove(dir_ / "model.safetensors");
  fs::create_symlink("model.safetensors", dir_ / "model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("cannot open"));
}

// -- GGUF

// The tiny checkpoint as llama.cpp's converter would write it, in f32.
std::string to_gguf(const Checkpoint& from, const std::string& arch, bool interleave,
                    const std::vector<float>& divisors = {}) {
  const ModelSpec& s = from.spec();
  GgufBuilder b;
  const auto key = [&](const char* name) { return arch + "." + name; };
  b.text("general.architecture", arch).text("general.name", "tiny").u32(key("block_count"), uint32_t(s.layers));
  b.u32(key("embedding_length"), uint32_t(s.hidden)).u32(key("feed_forward_length"), uint32_t(s.ffn));
  b.u32(key("attention.head_count"), uint32_t(s.heads))
      .u32(key("attention.head_count_kv"), uint32_t(s.kv_heads));
  b.u32(key("attention.key_length"), uint32_t(s.head_dim))
      .u32(key("attention.value_length"), uint32_t(s.head_dim));
  b.u32(key("context_length"), uint32_t(s.context)).f32(key("attention.layer_norm_rms_epsilon"), s.norm_eps);
  b.f32(key("rope.freq_base"), s.rope.base);
  if (s.experts) {
    b.u32(key("expert_count"), uint32_t(s.experts))
        .u32(key("expert_used_count"), uint32_t(s.experts_per_token));
    b.u32(key("expert_feed_forward_length"), uint32_t(s.ffn));
  }
  if (s.window) b.u32(key("attention.sliding_window"), uint32_t(s.window));
  if (!s.windowed.empty()) b.array<uint8_t>(key("attention.sliding_window_pattern"), 7, s.windowed);
  DecodedRow scratch;
  std::map<std::string, std::vector<float>> stacked;  // of a layer's experts, one after the other
  for (const Slot& slot : slots_of(s)) {
    const auto rows = from.rows(slot.name);
    std::vector<float> values(size_t(slot.rows * slot.cols));
    const SlotPlace place = slot_place(slot.name);
    const bool rotated = interleave && (place.rest == "attn_q.weight" || place.rest == "attn_k.weight");
    for (int64_t r = 0; r < slot.rows; r++) {
      const int64_t d = s.head_dim, i = r % d;
      const int64_t to = rotated ? r - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1) : r;
      decode_f32(*rows, r, scratch, values.data() + to * slot.cols);
    }
    std::vector<uint64_t> dimensions{uint64_t(slot.cols)};
    if (slot.matrix) dimensions.push_back(uint64_t(slot.rows));
    if (const ExpertPlace expert = expert_place(place.rest); expert.expert >= 0) {
      const std::string name =
          "blk." + std::to_string(place.layer) + "." + std::string(expert.matrix) + "_exps.weight";
      std::vector<float>& all = stacked[name];
      all.insert(all.end(), values.begin(), values.end());
      dimensions.push_back(uint64_t(s.experts));
      if (expert.expert + 1 == s.experts) b.tensor_f32(name, dimensions, all);
      continue;
    }
    b.tensor_f32(slot.name, dimensions, values);
  }
  if (!divisors.empty()) b.tensor_f32("rope_freqs.weight", {divisors.size()}, divisors);
  return b.bytes();
}

struct Twin {
  const char* tiny;
  const char* arch;
  bool interleave;
};

class GgufTwin : public Folder, public testing::WithParamInterface<Twin> {};

TEST_P(GgufTwin, GivesTheSameLogits) {
  const std::string folder = kTiny + GetParam().tiny;
  const auto from = open_checkpoint(folder);
  ASSERT_TRUE(from.ok()) << from.error().message;
  const RopeSpec& rope = (*from)->spec().rope;
  std::vector<float> divisors;
  if (rope.scaling == RopeSpec::Scaling::llama3) {
    RopeSpec plain = rope;
    plain.scaling = RopeSpec::Scaling::none;
    const int d = (*from)->spec().head_dim;
    for (int i = 0; i < d / 2; i++)
      divisors.push_back(plain.inverse_frequencies(d)[size_t(i)] / rope.inverse_frequencies(d)[size_t(i)]);
  }
  write("m.gguf", to_gguf(**from, GetParam().arch, GetParam().interleave, divisors));
  const std::vector<int32_t> ids{7,  300, 12, 99, 100, 101, 55,  0,   8,   9,   10,  11,  12,
                                 13, 14,  15, 16, 17,  18,  200, 201, 202, 203, 204, 205, 206};
  TestRun a(folder, make_ref_backend()), b((dir_ / "m.gguf").string(), make_ref_backend());
  const auto want = a.step({{0, ids, 1}})[0], got = b.step({{0, ids, 1}})[0];
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); i++) ASSERT_NEAR(got[i], want[i], 1e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Families, GgufTwin,
    testing::Values(Twin{"llama-tied", "llama", true}, Twin{"llama-untied-llama3rope", "llama", true},
                    Twin{"mistral-window", "llama", true}, Twin{"qwen2-bias-tied", "qwen2", false},
                    Twin{"qwen3-qknorm", "qwen3", false}, Twin{"gemma3-local-global", "gemma3", false},
                    Twin{"phi3-fused", "phi3", false}, Twin{"mixtral-moe", "llama", true},
                    Twin{"qwen3moe", "qwen3moe", false}),
    [](const auto& info) {
      std::string name = info.param.tiny;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST_F(Folder, GgufRefusals) {
  const auto from = open_checkpoint(kTiny + "llama-tied");
  ASSERT_TRUE(from.ok());
  const std::string good = to_gguf(**from, "llama", true);
  const auto refusal_of = [&](const std::string& bytes) {
    write("m.gguf", bytes);
    const auto r = open_checkpoint((dir_ / "m.gguf").string());
    return r ? std::string("it was opened") : r.error().message;
  };
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1))
      bytes.replace(at, to.size(), to);
    return refusal_of(bytes);
  };
  EXPECT_EQ(refusal_of(good), "it was opened");
  EXPECT_THAT(changed("blk.1.attn_v.weight", "blk.1.attn_w.weight"),
              HasSubstr("'blk.1.attn_v.weight' is missing"));
  EXPECT_THAT(changed("general.architecture", "general.architectura"),
              HasSubstr("'general.architecture' is missing"));
  EXPECT_THAT(refusal_of(GgufBuilder().text("general.architecture", "bloom").bytes()),
              AllOf(HasSubstr("'bloom'"), HasSubstr("supported: gemma2")));
  EXPECT_THAT(refusal_of(good.substr(0, good.size() - 4096)), HasSubstr("truncated"));
  const auto r = open_checkpoint((dir_ / "absent.gguf").string());
  EXPECT_EQ(r.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(open_checkpoint(kTiny + "llama-tied/model.safetensors").error().message,
              HasSubstr("give the folder"));
}

TEST(Gguf, TheRealModel) {
  const auto r = open_checkpoint(SLUICE_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  ASSERT_TRUE(r.ok()) << r.error().message;
  const std::vector<int32_t> order = (*r)->row_order("blk.0.attn_k.weight");
  ASSERT_EQ(order.size(), 3u * 64);
  EXPECT_EQ(order[0], 0);
  EXPECT_EQ(order[1], 2);
  EXPECT_EQ(order[32], 1);
  EXPECT_EQ(order[64 + 33], 64 + 3);
  EXPECT_TRUE((*r)->row_order("blk.0.attn_v.weight").empty());
  EXPECT_TRUE((*r)->spec().tied_head);
  const std::vector<TensorInfo> tensors = (*r)->tensors();
  ASSERT_EQ(tensors.size(), 272u);
  EXPECT_EQ(tensors[2].name, "blk.0.ffn_down.weight");
  EXPECT_EQ(tensors[2].type, "Q4_1");
  EXPECT_EQ(tensors[2].canonical, (WeightFormat{WeightElement::int4, 32, true}));
  EXPECT_FALSE(tensors[2].lossy);
}

}  // namespace
}  // namespace sluice
