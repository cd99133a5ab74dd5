// The requests that benchmarks send: completions of random prompts, greedy, streamed, of a fixed length.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "cli/bench_client.h"

namespace sluice::cli {

// How prompts are said. Not every server takes token ids, nor ignore_eos.
enum class PromptForm { ids, text, plain_text };

// Prompts are random, so that no prefix but the shared one can be found in a cache.
class RandomPrompts {
 public:
  // `shared_prefix`: tokens that all prompts begin with. `vocabulary`: ids to draw from; by default those that
  // every vocabulary of more than 8,000 tokens has, none of them special.
  RandomPrompts(PromptForm form, uint64_t seed, int shared_prefix = 0, int vocabulary = 8000);
  // JSON: the shared prefix and so many tokens more.
  std::string next(int tokens);

 private:
  void append(std::string& out, int count, std::mt19937_64& random) const;

  PromptForm form_;
  uint64_t first_id_, ids_;
  std::mt19937_64 random_;
  std::string prefix_;
};

// `prompt` is JSON.
Exchange completion(const std::string& model, const std::string& prompt, int max_tokens, PromptForm form);

}  // namespace sluice::cli
