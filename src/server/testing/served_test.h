// A server on a free port with the toy model behind it: what tests of routes start from.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

#include "server/server.h"
#include "server/testing/toy_model.h"

namespace sluice {

class ServedTest : public testing::Test {
 protected:
  // `ready`: with the model; without, it is still loading.
  void start(ServerConfig config = {}, bool ready = true) {
    server_.reset();
    config.port = 0;
    auto started = Server::start(config);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(started).value();
    if (ready) server_->serve_model(model_);
  }
  void say(std::vector<std::string_view> tokens, FinishReason finish) {
    model_.scripted.script = [this, tokens, finish](const Request&) { return model_.says(tokens, finish); };
  }

  ToyModel model_;
  std::unique_ptr<Server> server_;
};

}  // namespace sluice
