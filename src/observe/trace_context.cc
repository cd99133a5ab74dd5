#include "observe/trace_context.h"

#include <algorithm>
#include <random>
#include <span>

namespace sluice {
namespace {

constexpr size_t kTraceparentChars = 55;  // of version 00
constexpr size_t kTracestateChars = 512;

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;  // upper case is malformed
}

bool read_hex(std::string_view text, std::span<uint8_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const int high = nibble(text[2 * i]), low = nibble(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = uint8_t(high << 4 | low);
  }
  return true;
}

std::string hex_of(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const uint8_t b : bytes) out += kDigits[b >> 4], out += kDigits[b & 15];
  return out;
}

template <size_t N>
std::array<uint8_t, N> random_id() {
  static thread_local std::mt19937_64 random{(uint64_t(std::random_device{}()) << 32) ^ std::random_device{}()};
  std::array<uint8_t, N> id{};
  while (id == std::array<uint8_t, N>{}) {
    for (size_t i = 0; i < N; i += 8) {
      const uint64_t word = random();
      for (size_t k = 0; k < 8; ++k) id[i + k] = uint8_t(word >> (8 * k));
    }
  }
  return id;
}

}  // namespace

std::string hex(const TraceId& id) { return hex_of(id); }
std::string hex(const SpanId& id) { return hex_of(id); }

LogIds log_ids(const TraceContext& context, std::string_view request_id) {
  LogIds ids{std::string(request_id), {}, {}, context.sampled};
  if (context) ids.trace_id = hex(context.trace_id), ids.span_id = hex(context.span_id);
  return ids;
}

std::optional<TraceContext> parse_traceparent(std::string_view header) {
  if (header.size() < kTraceparentChars || header[2] != '-' || header[35] != '-' || header[52] != '-')
    return std::nullopt;
  std::array<uint8_t, 1> version{}, flags{};
  TraceContext context;
  if (!read_hex(header.substr(0, 2), version) || !read_hex(header.substr(3, 32), context.trace_id) ||
      !read_hex(header.substr(36, 16), context.parent_id) || !read_hex(header.substr(53, 2), flags))
    return std::nullopt;
  if (version[0] == 0xff || !context || !context.has_parent()) return std::nullopt;
  if (header.size() > kTraceparentChars && (version[0] == 0 || header[kTraceparentChars] != '-'))
    return std::nullopt;
  context.sampled = flags[0] & 1;
  return context;
}

std::string traceparent_of(const TraceContext& context) {
  return "00-" + hex(context.trace_id) + "-" + hex(context.span_id) + (context.sampled ? "-01" : "-00");
}

std::string clean_tracestate(std::string_view header) {
  const bool clean = header.size() <= kTracestateChars &&
                     std::all_of(header.begin(), header.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  return clean ? std::string(header) : std::string();
}

bool is_sampled(const TraceId& id, double ratio) {
  if (ratio >= 1) return true;  // a double does not tell the last ids from the bound
  uint64_t low = 0;
  for (size_t i = 9; i < id.size(); ++i) low = low << 8 | id[i];
  return double(low) < ratio * double(uint64_t{1} << 56);
}

TraceContext begin_trace(std::string_view traceparent, std::string_view tracestate, double ratio) {
  TraceContext context;
  if (auto parent = parse_traceparent(traceparent)) {
    context = std::move(*parent);
    context.state = clean_tracestate(tracestate);
  } else {
    context.trace_id = random_id<16>();
    context.sampled = is_sampled(context.trace_id, ratio);
  }
  context.span_id = random_id<8>();
  return context;
}

}  // namespace sluice
