// Embeddings over HTTP: inputs of every shape, both encodings, and what is refused.
#include <gmock/gmock.h>

#include "server/json.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {
namespace {

using testing::HasSubstr;

class EmbeddingsTest : public ServedTest {
 protected:
  void SetUp() override {
    start();
    model_.scripted.info_.spec.hidden = 3;
    model_.scripted.pooled = {2, 2, 1};
    model_.scripted.script = [this](const Request&) { return model_.says({}, FinishReason::length); };
  }
  TestResponse post(const std::string& members) {
    return TestClient(server_->port()).post("/v1/embeddings", "{" + members + "}");
  }
};

TEST_F(EmbeddingsTest, OneVectorOfLengthOneForEachInput) {
  const TestResponse r = post(R"("input":["a","bc"],"model":"toy")");
  EXPECT_EQ(r.status, 200);
  auto d = JsonDocument::parse(r.body);
  ASSERT_TRUE(d.ok()) << r.body;
  const JsonView data = *d->root().find("data");
  ASSERT_EQ(data.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(data.at(i).find("index")->integer(), int64_t(i));
    const JsonView vector = *data.at(i).find("embedding");
    ASSERT_EQ(vector.size(), 3u);
    EXPECT_NEAR(*vector.at(0).number(), 2.0 / 3, 1e-6);
    EXPECT_NEAR(*vector.at(2).number(), 1.0 / 3, 1e-6);
  }
  EXPECT_THAT(r.body, HasSubstr(R"("usage":{"prompt_tokens":3,"total_tokens":3})"));
  EXPECT_EQ(model_.scripted.request(0).pooling, Pooling::mean);
  EXPECT_EQ(post(R"("input":[[5,6],[7]])").status, 200);
  EXPECT_EQ(post(R"("input":[5,6])").status, 200);
}

TEST_F(EmbeddingsTest, FewerDimensionsAreScaledAgain) {
  auto d = JsonDocument::parse(post(R"("input":"a","dimensions":2)").body);
  const JsonView vector = *d->root().find("data")->at(0).find("embedding");
  ASSERT_EQ(vector.size(), 2u);
  EXPECT_NEAR(*vector.at(0).number(), 0.70710678, 1e-6);
}

TEST_F(EmbeddingsTest, Base64IsLittleEndianFloats) {
  model_.scripted.pooled = {1, 0, 0};
  EXPECT_THAT(post(R"("input":"a","encoding_format":"base64")").body,
              HasSubstr(R"("embedding":"AACAPwAAAAAAAAAA")"));
  EXPECT_THAT(post(R"("input":"a","encoding_format":"base64","dimensions":1)").body,
              HasSubstr(R"("embedding":"AACAPw==")"));
}

TEST_F(EmbeddingsTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("model":"toy")", "input"},
      {R"("input":"")", "input"},
      {R"("input":[])", "input"},
      {R"("input":{"a":1})", "input"},
      {R"("input":"a","dimensions":4)", "dimensions"},
      {R"("input":"a","encoding_format":"hex")", "encoding_format"},
      {R"("input":"a","stream":true)", "stream"},
      {R"("input":"a","max_tokens":1)", "max_tokens"},
  };
  for (const auto& [members, field] : cases) {
    const TestResponse r = post(members);
    EXPECT_EQ(r.status, 400) << members;
    EXPECT_THAT(r.body, HasSubstr("\"param\":\"" + std::string(field) + "\"")) << members;
  }
}

}  // namespace
}  // namespace sluice
