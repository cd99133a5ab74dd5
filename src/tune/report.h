// What a session is told as: a table for the terminal, result.json (contract.md), and the words that run each
// step again.
#pragma once

#include <string>
#include <vector>

#include "tune/orders.h"
#include "tune/session.h"

namespace sluice::tune {

// What a report says besides the session itself.
struct ReportFacts {
  std::string model, device, load;  // for people
  std::string date;                 // ISO 8601
  std::string command;              // that made it
  std::string load_command;         // `sluice bench serve …` that drives the same load; empty: there is none
  std::string accuracy;             // what 4-bit weights cost, in words; empty: not measured
  std::vector<std::string> order;
  std::vector<OrderedGains> orders{};  // of all sessions in the folder, this one's among them
  std::vector<Slo> slo;
  double budget_s = 0;
};

// The first line says what was measured, the last ones where it went and what to run.
std::string table(const ReportFacts& facts, const Session& session);
std::string result_json(const ReportFacts& facts, const Session& session);

// "+364.7 %", "-76.8 %", with at most three digits behind the sign that mean something; "x120" from ten times
// on.
std::string change(double ratio);

// `sluice serve …` of a run.
std::string serve_command(const Run& run);

// One line where an SLO was asked for and the final configuration misses it; else empty.
std::string missed_slo(const ReportFacts& facts, const Session& session);

// What somebody who wants to serve is to do with sluice.yaml, in a sentence or two.
std::string advice(const Session& session);

}  // namespace sluice::tune
