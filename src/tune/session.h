// The course of a tuning session: the start, the steps one after the other, the search. What measures, and what
// predicts, is behind a Rig, so that the course itself is a matter of tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tune/judge.h"
#include "tune/plan.h"
#include "tune/search.h"

namespace sluice::tune {

class Rig {
 public:
  virtual ~Rig() = default;
  // Starts a server, drives the load for about so many seconds, stops the server; or takes a run that is on
  // file. A server that does not start is a Run with a failure.
  virtual Run measure(const Configuration& configuration, double seconds) = 0;
  // The same with long prompts, one after the other; `seconds` at most, so there may be fewer than wished.
  // Empty: none.
  virtual std::vector<LongContext> long_contexts(const Configuration& configuration, double seconds) = 0;
  // What the search is to try after `best`, which this rig has measured; best first.
  virtual std::vector<Variant> candidates(const Run& best) = 0;
  virtual double spent_s() const = 0;  // since the session began
  virtual bool interrupted() const = 0;
  virtual void say(const std::string& line) = 0;
};

struct SessionWish {
  Configuration start;
  std::vector<Step> steps;
  std::vector<Slo> slo;
  double budget_s = 600;
  bool long_contexts = true;
  bool equal_loads = false;  // all of one length: parts of a trace are only alike where they are the same
};

struct Tried {
  std::string name;
  Run run;
  Figures figures;
  Verdict verdict;  // against what was kept before
};

struct StepResult {
  std::string name, title;
  bool measured = false;
  bool kept = false;
  std::string reason{};        // why kept, not kept, or not measured
  std::vector<Tried> tried{};  // in order; empty: not measured
  size_t best = 0;             // of `tried`
  // What the doctor said of the server that the step was to improve, and whether one of the step's causes is
  // among it.
  std::vector<std::string> causes_before{};
  std::string named_before{};

  const Tried& chosen() const { return tried[best]; }
};

struct Session {
  std::vector<StepResult> steps;  // the start, the steps in their order, the search
  size_t final_step = 0;          // the last one that was kept; 0: the start
  double spent_s = 0;
  bool interrupted = false;
  std::vector<std::string> left_out;
  std::vector<LongContext> long_before, long_after;
  std::string failure;  // the start did not run: there is nothing to report

  const Tried& start() const { return steps.front().chosen(); }
  const Tried& final() const { return steps[final_step].chosen(); }
};

// Least seconds of load that a measurement is worth.
inline constexpr double kLeastLoad_s = 1.5;

Session tune(const SessionWish& wish, Rig& rig);

// The causes that a diagnosis names, in its order.
std::vector<std::string> causes_of(const std::string& diagnosis);

}  // namespace sluice::tune
