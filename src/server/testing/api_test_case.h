// Requests to the generation APIs of a server with the toy model, and what their errors must say.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "server/json.h"
#include "server/testing/served_test.h"
#include "server/testing/test_client.h"

namespace sluice {

class ApiTestCase : public ServedTest {
 protected:
  void SetUp() override { start({}); }
  TestResponse post(const std::string& path, const std::string& body, const std::string& headers = "") {
    TestClient client(server_->port());
    return client.post(path, body, headers);
  }
  TestResponse complete(const std::string& members) { return post("/v1/completions", "{" + members + "}"); }
  TestResponse chat(const std::string& members = "") {
    return post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}])" +
                                            (members.empty() ? "" : "," + members) + "}");
  }
  void expect_error(const TestResponse& response, int status, const std::string& param,
                    const std::string& code = "") {
    EXPECT_EQ(response.status, status) << response.body;
    auto d = JsonDocument::parse(response.body);
    ASSERT_TRUE(d.ok()) << response.body;
    const auto error = d->root().find("error");
    ASSERT_TRUE(error);
    EXPECT_EQ(error->find("param")->string().value_or(""), param) << response.body;
    if (!code.empty()) {
      EXPECT_EQ(error->find("code")->string(), code);
    }
  }
};

}  // namespace sluice
