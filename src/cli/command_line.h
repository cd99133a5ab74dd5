// What the user typed, as plain values. CLI11 lives in command_line.cc alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/faults.h"
#include "cli/config.h"
#include "quantize/plan.h"

namespace sluice::cli {

inline constexpr int kExitFailure = 1;   // one line on stderr says why
inline constexpr int kExitWrongUse = 2;  // the command line or sluice.yaml is at fault

struct ServeOptions {
  bool dry_run = false;
  bool print_config = false;
  bool print_schema = false;
  FaultPlan faults;                        // of SLUICE_FAULTS, for tests; no rules: none
  std::function<Result<Config>()> reread;  // the settings as they stand now, read anew
};

// Sampling of `run` and `chat`; negative temperature and top_k -1: the model's own default, else greedy.
struct GenerateOptions {
  std::string prompt;  // run only; "-": standard input
  int max_tokens = 256;
  float temperature = -1;
  float top_p = -1;
  float min_p = -1;
  int top_k = -1;
  int64_t seed = -1;   // -1: a new one each time
  std::string system;  // chat only
  bool raw = false;    // run only: special-token text in the prompt stays text
};

struct InspectOptions {
  bool json = false;
  bool tensors = false;  // one line per tensor instead of one per type
  bool device = false;   // one was named: say what becomes of the model there
};

struct EvalOptions {
  std::string data;                     // a text file
  std::string baseline;                 // a model to compare with; empty: MODEL with its cache in full
  std::vector<std::string> models;      // further ones, a row each
  std::vector<int> batch;               // sequences decoding together whose speed is measured
  std::string html;                     // a file to write the table and a plot to
  std::vector<std::string> precisions;  // of keys and values; empty: kv.precision
  int window_tokens = 4096;             // contexts that the text is cut into
  int max_tokens = 0;                   // of the text; 0: all
  bool json = false;

  // Whether models are compared, and not precisions of one model's cache alone.
  bool compares() const { return !baseline.empty() || !models.empty() || !batch.empty() || !html.empty(); }
};

// How is a matter of the quantize room; this is what was typed.
struct QuantizeOptions {
  std::string out;
  quantize::Settings settings;
  std::string method = "awq", targets = "all", observer = "minmax", observe_per = "channel";
  std::string calibration;  // a text or JSONL file
  std::string eval_data;    // a text that calibration may not share passages with
  int samples = 512;
  int sample_tokens = 512;
  uint64_t seed = 1;
  std::set<std::string> given;  // long names of the flags that were typed
};

struct BenchEngineOptions {
  std::vector<int> prompt_tokens = {512};
  std::vector<int> batch = {1};
  std::vector<int> depth = {0};
  int generate_tokens = 64;
  int repeat = 3;
  bool json = false;
};

struct BenchServeOptions {
  std::string url;
  std::string model;  // empty: the first of /v1/models
  std::string api_key;
  std::string lane;                  // as the server names them; empty: its default
  std::vector<std::string> headers;  // "NAME: VALUE"
  int concurrency = 0;               // closed loop; or
  double rate = 0;                   // open loop, requests a second, Poisson arrivals
  int requests = 64;
  int input_tokens = 128;
  int output_tokens = 64;
  bool no_keep_alive = false;
  int shared_prefix = 0;  // of the input tokens, how many are the same in every request
  uint64_t seed = 1;
  int timeout_ms = 300000;   // of one request
  bool attribution = false;  // ask the server afterwards where the time went
  bool json = false;
};

struct DoctorOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  int window_s = 30;
  int timeout_ms = 10000;
  bool json = false;
};

struct BenchSimulateOptions {
  std::string card;      // where a model is simulated; or
  std::string fit;       // a file of recorded steps
  std::string arrivals;  // empty: of recorded steps only the fit is wanted, else kDefaultArrivals
  std::string input_tokens = "128", output_tokens = "64", lanes, host;
  int tenants = 1;
  int shared_prefix = 0;
  int requests = 0;  // 0: as many as arrive in `duration_s`; with neither: 1,000
  double duration_s = 0;
  int timeout_ms = 0;               // of each request; 0: none
  std::vector<std::string> sweeps;  // KEY=A,B,C
  uint64_t seed = 1;
  bool json = false;
};

struct TuneOptions {
  std::string out;  // a folder
  int concurrency = 128;
  int input_tokens = 512, output_tokens = 128, shared_prefix = 0;
  std::string trace;  // a file of requests, instead
  std::string slo, order;
  std::string calibration, eval_data;  // text files: to make 4-bit weights with, to judge them by
  bool exact = false;                  // only what leaves the answers as they are
  bool from_config = false;            // start from the user's settings, not from the collapsed ones
  double budget_s = 600;
  std::string budget = "10m";
  int port = 0;  // of the servers that are measured; 0: any free one
  std::vector<int> long_contexts = {4096, 16384, 32768};
  uint64_t seed = 1;
  std::string words;  // the command line, for the report
};

enum class Command {
  serve,
  run,
  chat,
  eval,
  quantize,
  inspect,
  doctor,
  bench_engine,
  bench_serve,
  bench_simulate,
  trace,
  tune
};

struct CommandLine {
  Command command = Command::serve;
  Config config;  // defaults, then sluice.yaml, then flags
  ServeOptions serve;
  GenerateOptions generate;
  InspectOptions inspect;
  EvalOptions eval;
  QuantizeOptions quantize;
  BenchEngineOptions bench_engine;
  BenchServeOptions bench_serve;
  BenchSimulateOptions bench_simulate;
  std::vector<std::string> trace;  // words for sluice-trace
  DoctorOptions doctor;
  TuneOptions tune;
};

// The command line, or the exit status where nothing is left to do (help was printed, or the use was wrong and
// said so).
std::variant<CommandLine, int> parse_command_line(int argc, char** argv);

// The settings that the same command line gives now (sluice.yaml and the environment may have changed). Prints
// nothing.
Result<Config> reread_settings(int argc, char** argv);

}  // namespace sluice::cli
