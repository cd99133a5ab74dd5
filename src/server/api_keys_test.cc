#include "server/api_keys.h"

#include <gmock/gmock.h>

#include "server/cors.h"

namespace sluice {
namespace {

std::string hex(const Sha256& digest) {
  std::string out;
  for (const uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

// FIPS 180-4 examples, and the lengths around a block's padding against each other's known digests.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

HttpRequest with(const char* name, const std::string& value) {
  HttpRequest request;
  request.headers.emplace_back(name, value);
  return request;
}

TEST(ApiKeys, FindsHashedNamedAndPlainOnes) {
  auto keys = ApiKeys::create({"sha256:" + hex(sha256("one")), "bob=sha256:" + hex(sha256("two")), "a==b"});
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(keys->any_plain());
  EXPECT_EQ(keys->find(with("Authorization", "Bearer one")), 1);
  EXPECT_EQ(keys->find(with("authorization", "bearer two")), 2);
  EXPECT_EQ(keys->find(with("X-Api-Key", "a==b")), 3);
  EXPECT_EQ(keys->name(1), "key-1");
  EXPECT_EQ(keys->name(2), "bob");
  // Neither the digest as it stands in the file, nor a name, nor nothing lets anyone in.
  for (const std::string& wrong : {"sha256:" + hex(sha256("one")), hex(sha256("one")), std::string("bob"),
                                   std::string("One"), std::string("one "), std::string()}) {
    EXPECT_EQ(keys->find(with("Authorization", "Bearer " + wrong)), 0) << wrong;
    EXPECT_EQ(keys->find(with("X-Api-Key", wrong)), 0) << wrong;
  }
  EXPECT_EQ(keys->find(HttpRequest{}), 0);
}

TEST(Cors, OriginsThatNoBrowserSendsAreRefused) {
  EXPECT_TRUE(
      Cors::check({"*", "null", "https://chat.example.com", "http://127.0.0.1:3000", "http://[::1]:80"}).ok());
  for (const char* bad :
       {"", "x", "chat.example.com", "https://", "://a", "https://a/", "https://a/chat", "https://*.a"}) {
    const Status status = Cors::check({"https://good.example", bad});
    ASSERT_FALSE(status.ok()) << bad;
    EXPECT_THAT(status.error().message, testing::HasSubstr(std::string("got '") + bad + "'"));
  }
}

TEST(ApiKeys, RefusesBadEntriesByPlaceAlone) {
  const std::string good = "sha256:" + hex(sha256("x"));
  for (const std::string& bad : {std::string("sha256:12"), "sha256:" + std::string(64, 'g'),
                                 "two words=" + good, "a=sha256:" + hex(sha256("")), std::string()}) {
    auto keys = ApiKeys::create({good, bad});
    ASSERT_FALSE(keys.ok()) << bad;
    EXPECT_THAT(keys.error().message, testing::HasSubstr("entry 2"));
    if (!bad.empty()) {
      EXPECT_THAT(keys.error().message, testing::Not(testing::HasSubstr(bad)));
    }
  }
  EXPECT_FALSE(ApiKeys::create({"a=" + good, "a=" + good}).ok());
}

TEST(Cors, LetsListedOriginsIn) {
  const Cors none({}), one({"https://a.example"}), all({"*"});
  const HttpRequest a = with("Origin", "https://a.example"), b = with("Origin", "https://b.example");
  EXPECT_TRUE(none.headers(a).empty());
  EXPECT_THAT(one.headers(a),
              testing::Contains(HttpHeaders::value_type("Access-Control-Allow-Origin", "https://a.example")));
  EXPECT_THAT(one.headers(b), testing::ElementsAre(HttpHeaders::value_type("Vary", "Origin")));
  EXPECT_THAT(all.headers(b), testing::Contains(HttpHeaders::value_type("Access-Control-Allow-Origin", "*")));
  HttpRequest preflight = a;
  preflight.method = "OPTIONS";
  preflight.headers.emplace_back("Access-Control-Request-Method", "POST");
  preflight.headers.emplace_back("Access-Control-Request-Headers", "authorization, x-a\"<b");
  EXPECT_TRUE(one.is_preflight(preflight));
  EXPECT_FALSE(none.is_preflight(preflight));
  EXPECT_THAT(
      one.preflight(preflight, "POST, OPTIONS"),
      testing::Contains(HttpHeaders::value_type("Access-Control-Allow-Headers", "authorization, x-ab")));
}

}  // namespace
}  // namespace sluice
