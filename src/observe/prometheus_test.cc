#include "observe/prometheus.h"

#include <gmock/gmock.h>

#include <cmath>

#include "observe/exemplars.h"
#include "observe/process_meters.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Prometheus, WritesEachFamilyOnceWithAllItsSeries) {
  Counter stop, length;
  Gauge running;
  stop.add(3);
  running.set(2.5);
  const std::vector<Meter> meters = {
      {Meter::Kind::counter, "a_total", "What a is.", R"(reason="stop")", &stop, nullptr, nullptr},
      {Meter::Kind::gauge, "b", "Line\nbreak.", "", nullptr, &running, nullptr},
      {Meter::Kind::counter, "a_total", "What a is.", R"(reason="length")", &length, nullptr, nullptr}};
  EXPECT_EQ(prometheus_text(meters),
            "# HELP a_total What a is.\n# TYPE a_total counter\n"
            "a_total{reason=\"stop\"} 3\na_total{reason=\"length\"} 0\n"
            "# HELP b Line\\nbreak.\n# TYPE b gauge\nb 2.5\n");
}

TEST(Prometheus, HistogramIsCumulativeAndEndsInItsCount) {
  const double bounds[] = {0.1, 1};
  Histogram h(bounds);
  for (double v : {0.05, 0.5, 0.6, 7.0}) h.observe(v);
  const std::vector<Meter> meters = {{Meter::Kind::histogram, "t_seconds", "T.", "", nullptr, nullptr, &h}};
  EXPECT_EQ(prometheus_text(meters),
            "# HELP t_seconds T.\n# TYPE t_seconds histogram\n"
            "t_seconds_bucket{le=\"0.1\"} 1\nt_seconds_bucket{le=\"1\"} 3\nt_seconds_bucket{le=\"+Inf\"} 4\n"
            "t_seconds_sum 8.15\nt_seconds_count 4\n");
}

TEST(Prometheus, AliasesCarryTheSameValuesUnderTheOtherName) {
  Gauge running;
  running.set(4);
  const std::vector<Meter> meters = {
      {Meter::Kind::gauge, "sluice_requests_running", "R.", "", nullptr, &running, nullptr}};
  const std::string text = prometheus_text(meters, vllm_aliases(), prometheus_label("model_name", "a\"b\\c"));
  EXPECT_THAT(text, HasSubstr("\nsluice_requests_running 4\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_running{model_name=\"a\\\"b\\\\c\"} 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("vllm:prompt_tokens_total")));  // what is not counted has no alias
}

TEST(Prometheus, AliasesAreOfTheFirstEngineAlone) {
  Gauge stable, canary;
  stable.set(4);
  const std::vector<Meter> meters = {
      {Meter::Kind::gauge, "sluice_requests_waiting", "W.", "", nullptr, &stable, nullptr},
      {Meter::Kind::gauge, "sluice_requests_waiting", "W.", "pool=\"canary\"", nullptr, &canary, nullptr}};
  const std::string text = prometheus_text(meters, vllm_aliases());
  EXPECT_THAT(text, HasSubstr("\nsluice_requests_waiting{pool=\"canary\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:num_requests_waiting 4\n"));
  EXPECT_THAT(text, Not(HasSubstr("vllm:num_requests_waiting{")));
}

TEST(Prometheus, AliasesSpeakTheOthersWordsInLabelsToo) {
  Counter stop, cancelled;
  stop.add(3);
  const std::vector<Meter> meters = {{Meter::Kind::counter, "sluice_requests_finished_total", "E.",
                                      "reason=\"stop\"", &stop, nullptr, nullptr},
                                     {Meter::Kind::counter, "sluice_requests_finished_total", "",
                                      "reason=\"cancelled\"", &cancelled, nullptr, nullptr}};
  const std::string text = prometheus_text(meters, vllm_aliases());
  EXPECT_THAT(text, HasSubstr("\nsluice_requests_finished_total{reason=\"cancelled\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:request_success_total{finished_reason=\"stop\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nvllm:request_success_total{finished_reason=\"abort\"} 0\n"));
}

TEST(Prometheus, CountersOfSmallUnitsAreWrittenInTheUnitOfTheirName) {
  Counter ns;
  ns.add(1'500'000'000);
  const std::vector<Meter> meters = {
      {Meter::Kind::counter, "t_seconds_total", "T.", "", &ns, nullptr, nullptr, 1e-9}};
  EXPECT_THAT(prometheus_text(meters), HasSubstr("\nt_seconds_total 1.5\n"));
}

TEST(Prometheus, GaugesAreAlwaysNumbers) {
  Gauge broken;
  broken.set(std::nan(""));
  const std::vector<Meter> meters = {{Meter::Kind::gauge, "g", "G.", "", nullptr, &broken, nullptr}};
  EXPECT_THAT(prometheus_text(meters), HasSubstr("\ng 0\n"));
}

TEST(OpenMetrics, CountersAreFamiliesWithoutTotalAndTheEndIsMarked) {
  Counter stop;
  stop.add(3);
  const std::vector<Meter> meters = {
      {Meter::Kind::counter, "a_total", "What a is.", "", &stop, nullptr, nullptr}};
  EXPECT_EQ(open_metrics_text(meters, {}, "", nullptr),
            "# HELP a What a is.\n# TYPE a counter\na_total 3\n# EOF\n");
}

TEST(OpenMetrics, BucketsNameATraceThatFellThereLast) {
  const double bounds[] = {0.1, 1};
  Histogram h(bounds);
  for (double v : {0.05, 0.5, 7.0}) h.observe(v);
  const std::vector<Meter> meters = {{Meter::Kind::histogram, "t_seconds", "T.", "", nullptr, nullptr, &h}};
  Exemplars exemplars;
  exemplars.note(h, 0.4, TraceId{0xaa}, 1000);
  exemplars.note(h, 0.5, TraceId{0xbb}, 1001.5);
  exemplars.note(h, 7, TraceId{0xcc}, 1002);
  const std::string text = open_metrics_text(meters, {}, "", &exemplars);
  EXPECT_THAT(text, HasSubstr("\nt_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("\nt_seconds_bucket{le=\"1.0\"} 2 # {trace_id=\"bb000000000000000000000000000000\"} "
                        "0.5 1001.500\n"));
  EXPECT_THAT(text, HasSubstr("\nt_seconds_bucket{le=\"+Inf\"} 3 # {trace_id=\"cc0"));
  EXPECT_THAT(prometheus_text(meters), Not(HasSubstr("trace_id")));
}

TEST(OpenMetrics, IsWantedByWhoListsIt) {
  EXPECT_TRUE(wants_open_metrics("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"));
  EXPECT_FALSE(wants_open_metrics("text/plain"));
  EXPECT_FALSE(wants_open_metrics(""));
}

TEST(ProcessMeters, AreReadFromTheSystem) {
  update_process_meters();
  EXPECT_GT(meter::gauge("process_resident_memory_bytes", "Resident memory.").value(), 1e6);
  EXPECT_GT(meter::gauge("process_open_fds", "Open file descriptors.").value(), 2);
}

}  // namespace
}  // namespace sluice
