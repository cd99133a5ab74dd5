// `sluice run`: one completion to standard output, one line about its speed to standard error.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/signals.h"

namespace sluice::cli {

int run(const Config& config, const GenerateOptions& options) {
  std::string prompt = options.prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  Result<std::unique_ptr<ServedModel>> model = load_with_progress(config);
  if (!model) return failure(model.error());

  Signals signals(Signals::Watch::both);
  std::vector<int32_t> ids = (*model)->tokenizer().encode(prompt, true, !options.raw);
  if (ids.empty()) return failure("the prompt is empty, and this model begins a text with no token of its own");
  const auto print = [](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  Result<Generation> done =
      generate(**model, std::move(ids), options, print, [] { return Signals::count() > 0; });
  if (!done) return failure(done.error());
  fmt::print("\n");
  fmt::print(stderr, "{}\n", describe_speed(*done));
  return done->finish == FinishReason::failed ? failure("the engine gave up on this request") : 0;
}

}  // namespace sluice::cli
