#include "observe/live.h"

#include <gmock/gmock.h>

#include <cmath>

namespace sluice {
namespace {

using testing::HasSubstr;

constexpr TimeNs kSecond = 1'000'000'000;

// The meters that a sample reads, made by hand.
struct Meters {
  Counter prompt, generated, finished_stop, finished_length, preemptions;
  Gauge running, waiting;
  Histogram first_token{meter::kSeconds};
  Histogram sequences{std::array<double, 3>{1, 2, 4}};
  std::vector<Meter> all() {
    using K = Meter::Kind;
    return {{K::counter, "sluice_prompt_tokens_total", "", "", &prompt, nullptr, nullptr},
            {K::counter, "sluice_generated_tokens_total", "", "", &generated, nullptr, nullptr},
            {K::counter, "sluice_requests_finished_total", "", R"(reason="stop")", &finished_stop, nullptr,
             nullptr},
            {K::counter, "sluice_requests_finished_total", "", R"(reason="length")", &finished_length, nullptr,
             nullptr},
            {K::counter, "sluice_preemptions_total", "", "", &preemptions, nullptr, nullptr},
            {K::gauge, "sluice_requests_running", "", "", nullptr, &running, nullptr},
            {K::gauge, "sluice_requests_waiting", "", "", nullptr, &waiting, nullptr},
            {K::histogram, "sluice_time_to_first_token_seconds", "", "", nullptr, nullptr, &first_token},
            {K::histogram, "sluice_step_sequences", "", "", nullptr, nullptr, &sequences}};
  }
};

TEST(LiveSampler, RatesAreOfTheIntervalAndSumOverLabels) {
  Meters m;
  m.generated.add(1000);
  LiveSampler sampler;
  EXPECT_EQ(sampler.sample(m.all(), nullptr, kSecond).generated_tokens_s, 0) << "the first sample has no rates";
  m.generated.add(30);
  m.finished_stop.add(1);
  m.finished_length.add(2);
  m.running.set(3);
  const LiveSample s = sampler.sample(m.all(), nullptr, 3 * kSecond);
  EXPECT_DOUBLE_EQ(s.interval_s, 2);
  EXPECT_DOUBLE_EQ(s.generated_tokens_s, 15);
  EXPECT_DOUBLE_EQ(s.finished_s, 1.5);
  EXPECT_EQ(s.running, 3);
  EXPECT_EQ(sampler.sample(m.all(), nullptr, 4 * kSecond).generated_tokens_s, 0);
}

TEST(LiveSampler, PercentilesAndBatchesForgetWhatIsOlderThanTheWindow) {
  Meters m;
  LiveSampler sampler;
  TimeNs now = kSecond;
  sampler.sample(m.all(), nullptr, now);
  for (int i = 0; i < 100; ++i) m.first_token.observe(0.07);
  m.sequences.observe(2);
  m.sequences.observe(9);
  const LiveSample s = sampler.sample(m.all(), nullptr, now += kSecond);
  EXPECT_EQ(s.first_token.count, 100u);
  EXPECT_GT(s.first_token.p50, 0.05);
  EXPECT_LE(s.first_token.p99, 0.1);
  ASSERT_EQ(s.batch.size(), 4u);
  EXPECT_EQ(s.batch[1].steps, 1u);
  EXPECT_TRUE(std::isinf(s.batch[3].upto));
  EXPECT_EQ(s.batch[3].steps, 1u);
  for (size_t i = 0; i <= LiveSampler::kWindowSamples; ++i) sampler.sample(m.all(), nullptr, now += kSecond);
  const LiveSample later = sampler.sample(m.all(), nullptr, now += kSecond);
  EXPECT_EQ(later.first_token.count, 0u);
  EXPECT_EQ(later.batch[1].steps, 0u);
}

TEST(LiveSampler, AStepsTimeIsTheMeanOfTheRecordsSinceTheLastSample) {
  Meters m;
  StepLedger ledger;
  LiveSampler sampler;
  StepRecord old;
  old.execute_ns = kSecond;
  ledger.write(old);
  sampler.sample(m.all(), &ledger, kSecond);
  for (int i = 0; i < 4; ++i) {
    StepRecord r;
    r.execute_ns = 100'000'000 + i * 2'000'000;
    r.plan_ns = 1'000'000;
    r.kernels_ns = 90'000'000, r.to_device_ns = 12'500, r.to_host_ns = i * 1'000;
    r.tokens = 8;
    r.sequences = 2;
    r.weight_bytes = 1'000'000;
    r.flops = 5e6;
    r.stopped_by = i == 3 ? AdmissionStop::slots : AdmissionStop::none;
    ledger.write(r);
  }
  const LiveSample s = sampler.sample(m.all(), &ledger, 2 * kSecond);
  EXPECT_EQ(s.split.steps, 4);
  EXPECT_NEAR(s.split.execute_ms, 103, 1e-9);
  EXPECT_NEAR(s.split.plan_ms, 1, 1e-9);
  EXPECT_NEAR(s.split.to_device_us, 12.5, 1e-9);
  EXPECT_NEAR(s.split.kernels_us, 90'000, 1e-9);
  EXPECT_NEAR(s.split.to_host_us, 1.5, 1e-9);
  EXPECT_NEAR(s.split.sequences, 2, 1e-9);
  EXPECT_NEAR(s.busy_ratio, 0.412, 1e-9);
  EXPECT_NEAR(s.bytes_s, 4e6 / 0.412, 1);
  EXPECT_NEAR(s.flops_s, 20e6 / 0.412, 1);
  EXPECT_EQ(s.stopped_by, AdmissionStop::slots);
}

TEST(LiveSampler, LanesAndPrefixHitsAreToldWhereTheyAreCounted) {
  Meters m;
  LiveSampler sampler;
  EXPECT_TRUE(sampler.sample(m.all(), nullptr, kSecond).lanes.empty());
  EXPECT_EQ(sampler.sample(m.all(), nullptr, 2 * kSecond).prefix_hit_ratio, -1);
  Gauge running, waiting;
  running.set(2);
  waiting.set(5);
  Counter asked, found;
  std::vector<Meter> all = m.all();
  const std::string lane = R"(lane="interactive")";
  all.push_back({Meter::Kind::gauge, "sluice_lane_requests_running", "", lane, nullptr, &running, nullptr});
  all.push_back({Meter::Kind::gauge, "sluice_lane_requests_waiting", "", lane, nullptr, &waiting, nullptr});
  all.push_back({Meter::Kind::counter, "sluice_prefix_cache_queries_total", "", "", &asked, nullptr, nullptr});
  all.push_back({Meter::Kind::counter, "sluice_prefix_cache_hits_total", "", "", &found, nullptr, nullptr});
  sampler.sample(all, nullptr, 3 * kSecond);
  asked.add(200);
  found.add(50);
  const LiveSample s = sampler.sample(all, nullptr, 4 * kSecond);
  ASSERT_EQ(s.lanes.size(), 1u);
  EXPECT_EQ(s.lanes[0].name, "interactive");
  EXPECT_EQ(s.lanes[0].used, 2);
  EXPECT_EQ(s.lanes[0].other, 5);
  EXPECT_DOUBLE_EQ(s.prefix_hit_ratio, 0.25);
}

TEST(BucketQuantile, LiesInTheBucketAndEndsAtTheLastBound) {
  const double bounds[] = {1, 2, 4};
  const uint64_t counts[] = {10, 10, 0, 20};
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, counts, 0.125), 0.5);
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, counts, 0.375), 1.5);
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, counts, 0.99), 4);
  const uint64_t none[] = {0, 0, 0, 0};
  EXPECT_DOUBLE_EQ(bucket_quantile(bounds, none, 0.5), 0);
}

LiveSample busy() {
  LiveSample s;
  s.running = 4;
  s.split.steps = 10;
  s.split.execute_ms = 10;
  s.split.sequences = 4;
  s.bytes_s = 10e9;
  s.flops_s = 10e9;
  return s;
}

TEST(Verdict, NamesTheCauseThatTheSampleShows) {
  const auto cause = [](const LiveSample& s, LivePeaks peaks = {}) {
    return std::string(what_holds_back(s, {64, peaks}).cause);
  };
  EXPECT_EQ(cause(LiveSample{}), "idle");
  EXPECT_EQ(cause(busy()), "none");
  EXPECT_EQ(cause(busy(), {11e9, 1e12}), "bandwidth");
  EXPECT_EQ(cause(busy(), {13e9, 1e12}), "none") << "the diagnosis would not say so either";
  EXPECT_EQ(cause(busy(), {11e9, 11e9}), "compute");
  LiveSample s = busy();
  s.split.gap_ms = 4;
  EXPECT_EQ(cause(s), "host");
  s = busy();
  s.running = 1;
  s.split.sequences = 1;
  EXPECT_EQ(cause(s), "alone");
  s.paused = 1;
  EXPECT_EQ(cause(s), "clients");
  s.waiting = 3;
  EXPECT_EQ(cause(s), "none") << "the next step takes them in";
  s.stopped_by = AdmissionStop::blocks;
  EXPECT_EQ(cause(s), "kv");
  s.stopped_by = AdmissionStop::prefix;
  EXPECT_EQ(cause(s), "prefix");
  s.stopped_by = AdmissionStop::serial;
  EXPECT_EQ(cause(s), "policy");
}

TEST(Verdict, SaysHowManyWaitAndWhichSettingHelps) {
  LiveSample s = busy();
  s.waiting = 12;
  s.stopped_by = AdmissionStop::slots;
  const Verdict v = what_holds_back(s, {64, {}});
  EXPECT_EQ(v.cause, "seats");
  EXPECT_THAT(v.text, HasSubstr("12 requests wait: all 64 seats are taken"));
  EXPECT_THAT(v.text, HasSubstr("engine.max_sequences"));
}

}  // namespace
}  // namespace sluice
