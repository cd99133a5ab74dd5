// A server on a free port with the toy model behind it: what tests of routes start from.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <vector>

#include "observe/live.h"
#include "server/server.h"
#include "server/testing/toy_model.h"

namespace sluice {

// Of a model that outlives all who use it.
inline std::shared_ptr<ServedModel> borrowed(ServedModel& model) { return {std::shared_ptr<void>(), &model}; }

class ServedTest : public testing::Test {
 protected:
  // `ready`: with the model; without, it is still loading.
  void start(ServerConfig config = {}, bool ready = true) {
    server_.reset();
    config.port = 0;
    auto started = Server::start(config);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server_ = std::move(started).value();
    if (ready) server_->serve_model(borrowed(model_), {});
  }
  void say(std::vector<std::string_view> tokens, FinishReason finish) {
    model_.scripted.script = [this, tokens, finish](const Request&) { return model_.says(tokens, finish); };
  }
  // Byte by byte, so that any text can be said.
  void spell(std::string_view text, FinishReason finish) {
    std::vector<TokenEvent> events;
    for (const char c : text) events.emplace_back().id = model_.byte(c);
    if (finish == FinishReason::stop)
      events.push_back(model_.end());
    else
      events.back().finish = finish;
    model_.scripted.script = [events](const Request&) { return events; };
  }

  ToyModel model_;
  std::unique_ptr<Server> server_;
};

}  // namespace sluice
