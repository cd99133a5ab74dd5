// One function per subcommand, one file each. All return the exit status; what failed is one line on stderr.
#pragma once

#include "cli/command_line.h"

namespace sluice::cli {

int serve(const Config& config, const ServeOptions& options);
int run(const Config& config, const GenerateOptions& options);
int chat(const Config& config, const GenerateOptions& options);
int eval(const Config& config, const EvalOptions& options);
int quantize_command(const Config& config, const QuantizeOptions& options);
int inspect(const Config& config, const InspectOptions& options);
int doctor(const DoctorOptions& options);
int bench_engine(const Config& config, const BenchEngineOptions& options);
int bench_serve(const BenchServeOptions& options);
int bench_simulate(const Config& config, const BenchSimulateOptions& options);
int tune_command(const Config& config, const TuneOptions& options);
int trace(const std::vector<std::string>& arguments);

// "sluice: message" on stderr.
int failure(const std::string& message);
int failure(const Error& error);
// Of a start: kExitWrongUse where a setting is at fault.
int failed_start(const Error& error);

}  // namespace sluice::cli
