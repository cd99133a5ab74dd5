#include <gtest/gtest.h>

#include "cli/recorded_steps.h"
#include "cli/simulated_server.h"
#include "cli/traffic_flags.h"
#include "model/dummy_checkpoint.h"

namespace sluice::cli {
namespace {

TEST(ParseLength, ReadsItsForms) {
  EXPECT_EQ(parse_length("512")->low, 512);
  EXPECT_EQ(parse_length("512")->high, 512);
  for (const char* text : {"512±128", "512+-128", "512 ± 128", "uniform:384,640"}) {
    ASSERT_TRUE(parse_length(text).ok()) << text;
    EXPECT_EQ(parse_length(text)->low, 384) << text;
    EXPECT_EQ(parse_length(text)->high, 640) << text;
  }
  const Result<LengthLaw> law = parse_length("lognormal:100,0.5,2000");
  ASSERT_TRUE(law.ok());
  EXPECT_EQ(law->median, 100);
  EXPECT_EQ(law->sigma, 0.5);
  EXPECT_EQ(law->high, 2000);
}

TEST(ParseLength, RefusesTheRest) {
  for (const char* text : {"", "0", "-1", "512±", "±3", "5±5", "5±6", "uniform:1", "uniform:0,3", "uniform:4,3",
                           "lognormal:0,1", "lognormal:1", "lognormal:9,1,3", "x", "512 tokens", "1e9"})
    EXPECT_FALSE(parse_length(text).ok()) << text;
}

TEST(ParseArrivals, ReadsItsForms) {
  EXPECT_EQ(parse_arrivals("poisson:2.5")->rate, 2.5);
  EXPECT_EQ(parse_arrivals("closed:8")->concurrency, 8);
  const Result<Arrivals> bursty = parse_arrivals("bursty:2,40,1,5");
  ASSERT_TRUE(bursty.ok());
  EXPECT_EQ(bursty->burst_rate, 40);
  EXPECT_EQ(bursty->off_s, 5);
  EXPECT_TRUE(parse_arrivals("bursty:0,40,1,5").ok());
}

TEST(ParseArrivals, RefusesTheRest) {
  for (const char* text :
       {"", "poisson", "poisson:", "poisson:0", "poisson:-1", "poisson:nan", "poisson:1,2", "closed:0",
        "closed:1.5", "bursty:1,2,3", "bursty:1,0,1,1", "bursty:1,2,0,1", "uniform:3"})
    EXPECT_FALSE(parse_arrivals(text).ok()) << text;
}

TEST(ParseLanes, SharesByName) {
  EXPECT_EQ((*parse_lanes("batch:3,interactive:1")), (std::array<double, kLanes>{1, 0, 3}));
  for (const char* text : {"", "batch", "batch:x", "fast:1", "batch:0"})
    EXPECT_FALSE(parse_lanes(text).ok()) << text;
}

TEST(ParseTrace, ReadsCsvAndJsonLines) {
  const Result<Trace> csv = parse_trace(
      "timestamp,input,output,lane,tenant,shared_prefix\n"
      "10.5,20,3\n"
      "10,5,6,batch,7,4\n",
      "t");
  ASSERT_TRUE(csv.ok());
  ASSERT_EQ(csv->requests.size(), 2u);
  EXPECT_EQ(csv->requests[0].at, 0) << "sorted, and from the first one on";
  EXPECT_EQ(csv->requests[0].lane, Lane::batch);
  EXPECT_EQ(csv->requests[0].tenant, 7u);
  EXPECT_EQ(csv->requests[0].shared_prefix, 4);
  EXPECT_EQ(csv->requests[1].at, 500'000'000);
  const Result<Trace> json = parse_trace(R"({"timestamp":1,"input":5,"output":6,"lane":"interactive"})", "t");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->requests[0].lane, Lane::interactive);
}

TEST(ParseTrace, ErrorsNameTheLine) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {{"1,2,3\n2,x,3\n", "t:2: expected input tokens"},
               {"1,2\n", "t:1: expected timestamp,input,output"},
               {"1,2,0\n", "t:1: expected output tokens"},
               {"1,2,3,fast\n", "t:1: expected lane"},
               {"nan,2,3\n", "t:1: expected a timestamp"},
               {"{\"timestamp\":1,\"input\":2}\n", "t:1: expected output tokens"},
               {"1,4,3,,,5\n", "t:1: expected a shared prefix from 0 to the input's 4"},
               {"\n\n", "t: holds no request"}};
  for (const auto& c : cases) {
    const Result<Trace> trace = parse_trace(c.text, "t");
    ASSERT_FALSE(trace.ok()) << c.text;
    EXPECT_TRUE(trace.error().message.starts_with(c.says)) << trace.error().message;
  }
}

StepRecord some_step(int64_t number) {
  StepRecord r;
  r.step = number, r.tokens = 12, r.sequences = 4, r.one_token_sequences = 3, r.execute_ns = 5'000'000 + number;
  r.context_tokens = 100, r.kv_read_bytes = 100 * 64, r.prompt_pairs = 45, r.logit_rows = 4;
  r.prompt_context_tokens = 700;
  return r;
}
RecordedServer some_server() {
  return {.model = "m \"quoted\"",
          .device = "d",
          .batching = "continuous",
          .max_sequences = 8,
          .step_tokens = 64,
          .context = 1024,
          .block_tokens = 16,
          .blocks = 100,
          .windows = {0, 512},
          .kv_bytes_per_token = 64};
}

TEST(RecordedSteps, AreReadAsTheyWereWritten) {
  std::string text = recorded_header(some_server());
  append_recorded_step(text, some_step(1));
  text += recorded_gap(3);
  append_recorded_step(text, some_step(5));
  const Result<RecordedSteps> read = parse_recorded_steps(text, "f");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->server.model, "m \"quoted\"");
  EXPECT_EQ(read->server.windows, (std::vector<int>{0, 512}));
  EXPECT_EQ(read->dropped, 3);
  ASSERT_EQ(read->steps.size(), 2u);
  EXPECT_EQ(read->steps[1].execute_ns, 5'000'005);
  const StepWork work = read->work(read->steps[0]);
  EXPECT_EQ(work.prompt_rows(), 9);
  EXPECT_EQ(work.kv_read_tokens, 100);
  EXPECT_EQ(work.prompt_context_tokens, 700);
}

TEST(RecordedSteps, TimesBetweenHostAndCardAreKeptAndOlderFilesHaveNone) {
  StepRecord r = some_step(1);
  r.kernels_ns = 300, r.to_device_ns = 20, r.to_host_ns = 1;
  std::string text = recorded_header(some_server());
  append_recorded_step(text, r);
  const std::string added = ",\"kernels_ns\":300,\"to_device_ns\":20,\"to_host_ns\":1";
  const size_t at = text.find(added);
  ASSERT_NE(at, std::string::npos) << text;
  const Result<RecordedSteps> read = parse_recorded_steps(text, "f");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->steps[0].to_device_ns, 20);
  const Result<RecordedSteps> older = parse_recorded_steps(text.erase(at, added.size()), "f");
  ASSERT_TRUE(older.ok()) << older.error().message;
  EXPECT_EQ(older->steps[0].kernels_ns, 0);
}

TEST(RecordedSteps, OlderFilesSayNothingOfContextsBeforeChunks) {
  std::string text = recorded_header(some_server());
  append_recorded_step(text, some_step(1));
  const std::string added = ",\"prompt_context_tokens\":700";
  text.erase(text.find(added), added.size());
  const Result<RecordedSteps> read = parse_recorded_steps(text, "f");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->work(read->steps[0]).prompt_context_tokens, 0);
}

TEST(RecordedSteps, BadLinesAreNamedByNumber) {
  const std::string header = recorded_header(some_server());
  std::string good;
  append_recorded_step(good, some_step(1));
  const std::pair<std::string, const char*> cases[] = {
      {"", "f: holds no step"},
      {"{}\n", "f:1: no file of recorded steps"},
      {"{\"sluice_steps\":2}\n", "f:1: \"sluice_steps\" must be 1"},
      {header, "f: holds no step"},
      {header + good + "{\"step\":2\n", "f:3: "},
      {header + good + "[]\n", "f:3: expected an object"},
      {header + good + "{\"step\":-2}\n", "f:3: \"step\" must be an integer"},
      {header + good + good.substr(0, good.size() / 2), "f:3: "},
      {header + "{\"dropped\":\"x\"}\n", "f:2: \"dropped\" must be"}};
  for (const auto& [text, says] : cases) {
    const Result<RecordedSteps> read = parse_recorded_steps(text, "f");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_TRUE(read.error().message.starts_with(says)) << read.error().message;
  }
}

TEST(SimulatedServer, AnH200TakesWhatWasMeasured) {
  const auto checkpoint = make_dummy_checkpoint("llama-3.1-8b:bf16");
  ASSERT_TRUE(checkpoint.ok());
  const Result<SimulatedServer> server = server_of_card("h200", **checkpoint, 0);
  ASSERT_TRUE(server.ok());
  const auto decode_ms = [&](int batch) {
    StepWork work;
    work.rows = work.sequences = work.one_token_sequences = work.samples = batch;
    work.kv_read_tokens = int64_t(batch) * 550, work.pairs = double(work.kv_read_tokens);
    return 1e-6 * double(step_ns(server->cost, work, 0.5));
  };
  // docs/performance.md, "On an H200", decode at a depth of 512.
  EXPECT_NEAR(decode_ms(1), 3.80, 0.2);
  EXPECT_NEAR(decode_ms(32), 4.61, 0.25);
  EXPECT_NEAR(decode_ms(128), 7.40, 0.4);
  EXPECT_NEAR(decode_ms(256), 11.7, 0.6);
}

TEST(SimulatedServer, WhatDiffersOfACardIsSaid) {
  const auto checkpoint = make_dummy_checkpoint("llama-3.2-1b:bf16");
  ASSERT_TRUE(checkpoint.ok());
  const Result<SimulatedServer> server = server_of_card("h200,read_gb_s=1000,memory_gib=20", **checkpoint, 0);
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(std::get<Roofline>(server->cost).device.read_bytes_s, 1e12);
  EXPECT_LT(server->memory_bytes, size_t{17} << 30);
  for (const char* card :
       {"", "h300", "h200,x=1", "h200,tflop_s=", "h200,tflop_s=0", "h200,,", "h200,tflop_s"}) {
    const Result<SimulatedServer> wrong = server_of_card(card, **checkpoint, 0);
    ASSERT_FALSE(wrong.ok()) << card;
    EXPECT_TRUE(wrong.error().message.starts_with("--card")) << wrong.error().message;
  }
  EXPECT_FALSE(server_of_card("h200,memory_gib=2", **checkpoint, 0).ok()) << "the weights do not fit";
}

}  // namespace
}  // namespace sluice::cli
