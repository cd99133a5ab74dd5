#include "cli/commands.h"

#include <cstdio>

namespace sluice::cli {

int failure(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "sluice: %s\n", message.c_str());
  return kExitFailure;
}

int failure(const Error& error) {
  return failure(error.field.empty() ? error.message : error.field + ": " + error.message);
}

}  // namespace sluice::cli
