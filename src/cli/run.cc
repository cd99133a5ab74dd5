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
  bool lost = false;  // nobody takes the text
  const auto print = [&lost](std::string_view text) {
    lost = lost || std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0;
  };
  Result<Generation> done =
      generate(**model, std::move(ids), options, print, [&] { return lost || Signals::count() > 0; });
  if (!done) return failure(done.error());
  if (lost) return kExitFailure;  // main says so
  fmt::print("\n");
  fmt::print(stderr, "{}\n", describe_speed(*done));
  if (Status whole = check_whole(*done); !whole) return failure(whole.error());
  return done->finish == FinishReason::cancelled ? 128 + SIGINT : 0;  // the answer is a part of one
}

}  // namespace sluice::cli
