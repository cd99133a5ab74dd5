// One answer, for the commands that talk to the model themselves (`run`, `chat`). Everything on the calling
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"
#include "engine/served_model.h"

namespace sluice::cli {

// Loads with progress on the terminal.
Result<std::unique_ptr<ServedModel>> load_with_progress(const Config& config);

struct Generation {
  std::string text;
  FinishReason finish = FinishReason::none;
  int prompt_tokens = 0;
  int generated_tokens = 0;
  bool broken = false;       // a token came of logits that are not numbers
  double first_token_s = 0;  // from submission
  double total_s = 0;
};

// Streams the text to `on_text` as it becomes certain. `stopped` is asked about twenty times a second: true
// cancels.
Result<Generation> generate(ServedModel& model, std::vector<int32_t> prompt, const GenerateOptions& options,
                            const std::function<void(std::string_view)>& on_text,
                            const std::function<bool()>& stopped);

// Of an answer that is none: the engine gave up, or its tokens mean nothing. Text may have been printed by
// then.
Status check_whole(const Generation& generation);

// "512 prompt tokens in 0.40 s (1280.0 tok/s), 64 generated in 0.80 s (78.8 tok/s)"
std::string describe_speed(const Generation& generation);

}  // namespace sluice::cli
