#include "base/log.h"
#include "cli/commands.h"

namespace sluice::cli {
namespace {

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "warn") return LogLevel::warn;
  if (name == "error") return LogLevel::error;
  if (name == "off") return LogLevel::off;
  return LogLevel::info;
}

int dispatch(const CommandLine& line) {
  switch (line.command) {
    case Command::serve:
      return serve(line.config, line.serve);
    case Command::run:
      return run(line.config, line.generate);
    case Command::chat:
      return chat(line.config, line.generate);
    case Command::inspect:
      return inspect(line.config, line.inspect);
    case Command::bench_engine:
      return bench_engine(line.config, line.bench_engine);
    case Command::bench_serve:
      return bench_serve(line.bench_serve);
  }
  return kExitWrongUse;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  using namespace sluice;
  using namespace sluice::cli;
  const std::variant<CommandLine, int> parsed = parse_command_line(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return *status;
  const CommandLine& line = std::get<CommandLine>(parsed);
  set_log_level(log_level(line.config.log_level));
  set_log_json(line.config.log_json);
  return dispatch(line);
}
