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

int failed_start(const Error& error) {
  const int status = failure(error);
  return error.code == ErrorCode::kInvalidArgument && !error.field.empty() ? kExitWrongUse : status;
}

}  // namespace sluice::cli
