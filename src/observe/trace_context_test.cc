// W3C Trace Context: what of a caller's headers counts, and how the answer's are made.
#include "observe/trace_context.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr const char* kParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, TakesTheCallersTraceAndDecision) {
  const TraceContext c = begin_trace(kParent, "vendor=1", 0);
  EXPECT_EQ(hex(c.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(hex(c.parent_id), "00f067aa0ba902b7");
  EXPECT_TRUE(c.sampled);
  EXPECT_EQ(c.state, "vendor=1");
  EXPECT_NE(c.span_id, c.parent_id);
  EXPECT_EQ(traceparent_of(c), "00-4bf92f3577b34da6a3ce929d0e0e4736-" + hex(c.span_id) + "-01");

  const std::string unsampled = std::string(kParent, 53) + "00";
  EXPECT_FALSE(begin_trace(unsampled, "", 1).sampled);  // though the ratio would have it
}

TEST(TraceContext, BeginsATraceOfItsOwnWhereTheHeaderIsNone) {
  for (const char* header : {
           "",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",        // no flags
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",     // upper case
           "00-00000000000000000000000000000000-00f067aa0ba902b7-01",     // no trace
           "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",     // no parent
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",   // more than version 00 has
           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",     // no hex
           "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",     // a version that cannot be
           "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more"  // a later one, not set apart
       }) {
    EXPECT_FALSE(parse_traceparent(header)) << header;
    const TraceContext c = begin_trace(header, "vendor=1", 1);
    EXPECT_TRUE(c);
    EXPECT_FALSE(c.has_parent());
    EXPECT_TRUE(c.sampled);
    EXPECT_EQ(c.state, "");
  }
  EXPECT_TRUE(parse_traceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more"));
}

TEST(TraceContext, TheRatioDecidesByTheTracesIdAlone) {
  TraceId id{};
  id[0] = 0xff;  // not of the part that is random by the standard
  EXPECT_TRUE(is_sampled(id, 0.001));
  EXPECT_FALSE(is_sampled(id, 0));
  id.fill(0xff);
  EXPECT_FALSE(is_sampled(id, 0.999));
  EXPECT_TRUE(is_sampled(id, 1));
  id[9] = 0x40;  // a quarter of the range
  EXPECT_FALSE(is_sampled(id, 0.25));
  EXPECT_TRUE(is_sampled(id, 0.26));
}

TEST(TraceContext, IdsDiffer) {
  const TraceContext a = begin_trace("", "", 1), b = begin_trace("", "", 1);
  EXPECT_NE(a.trace_id, b.trace_id);
  EXPECT_NE(a.span_id, b.span_id);
}

TEST(TraceContext, StateThatCannotBePassedOnIsDropped) {
  EXPECT_EQ(begin_trace(kParent, "a=1\r\nSet-Cookie: x", 1).state, "");
  EXPECT_EQ(begin_trace(kParent, std::string(513, 'a'), 1).state, "");
  EXPECT_EQ(begin_trace(kParent, std::string(512, 'a'), 1).state, std::string(512, 'a'));
}

}  // namespace
}  // namespace sluice
