#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <system_error>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/machine_binding.h"
#include "tune/configuration.h"

namespace sluice::cli {
namespace {

LogLevel log_level(const std::string& name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "warn") return LogLevel::warn;
  if (name == "error") return LogLevel::error;
  if (name == "off") return LogLevel::off;
  return LogLevel::info;
}

// Of commands that compute in this process: `serve` has more threads, and does it for itself.
Status bind(const CommandLine& line) {
  switch (line.command) {
    case Command::run:
    case Command::chat:
    case Command::eval:
    case Command::bench_engine:
      return bind_to_machine(line.config);
    case Command::quantize: {
      Config config = line.config;
      if (!line.quantize.given.contains("device")) config.model.device = "cpu";
      return bind_to_machine(config);
    }
    default:
      return {};
  }
}

int dispatch(const CommandLine& line, const std::string& words, std::function<Result<Config>()> reread) {
  if (Status ok = bind(line); !ok) return failed_start(ok.error());
  switch (line.command) {
    case Command::serve: {
      ServeOptions options = line.serve;
      options.reread = std::move(reread);
      return serve(line.config, options);
    }
    case Command::run:
      return run(line.config, line.generate);
    case Command::chat:
      return chat(line.config, line.generate);
    case Command::eval:
      return eval(line.config, line.eval);
    case Command::quantize:
      return quantize_command(line.config, line.quantize);
    case Command::inspect:
      return inspect(line.config, line.inspect);
    case Command::doctor:
      return doctor(line.doctor);
    case Command::bench_engine:
      return bench_engine(line.config, line.bench_engine);
    case Command::bench_serve:
      return bench_serve(line.bench_serve);
    case Command::trace:
      return trace(line.trace);
    case Command::tune: {
      TuneOptions options = line.tune;
      options.words = words;
      return tune_command(line.config, options);
    }
    case Command::bench_simulate:
      return bench_simulate(line.config, line.bench_simulate);
  }
  return kExitWrongUse;
}

// Output that went nowhere (a full disk) is a failure, whatever the command made of it.
int flushed(int status, int error) {
  std::cout.flush();
  if (std::fflush(stdout) != 0) error = errno;
  if (!std::ferror(stdout) && std::cout.good() && error == 0) return status;
  std::fprintf(stderr, "sluice: standard output: %s\n",
               error ? std::strerror(error) : "what was written has been lost");
  return status ? status : kExitFailure;
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  using namespace sluice;
  using namespace sluice::cli;
  const std::variant<CommandLine, int> parsed = parse_command_line(argc, argv);
  if (const int* status = std::get_if<int>(&parsed)) return flushed(*status, 0);
  const CommandLine& line = std::get<CommandLine>(parsed);
  set_log_level(log_level(line.config.log_level));
  set_log_json(line.config.log_json);
  try {
    std::vector<std::string> words(argv, argv + argc);
    words[0] = "sluice";
    const auto reread = [&] { return reread_settings(argc, argv); };
    return flushed(dispatch(line, tune::shell_line(words), reread), 0);
  } catch (const std::system_error& e) {  // fmt::print, when nothing more can be written
    return flushed(kExitFailure, e.code().value());
  }
}
