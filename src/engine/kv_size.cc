#include "engine/kv_size.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {
namespace {

double mib(size_t bytes) { return double(bytes) / 1048576.0; }

// The longest context, in whole blocks, that fits `blocks`; peak_blocks rises with length.
int longest_context(const KvLayout& layout, size_t blocks) {
  int fits = 0, too_long = layout.row_capacity() + 1;
  while (too_long - fits > 1) {
    const int middle = fits + (too_long - fits) / 2;
    (size_t(layout.peak_blocks(middle * layout.block_tokens)) <= blocks ? fits : too_long) = middle;
  }
  return std::min(fits * layout.block_tokens, layout.max_length);
}

}  // namespace

Result<KvSize> size_kv(const KvWish& wish) {
  const KvLayout& layout = wish.layout;
  CHECK(layout.block_tokens > 0 && layout.max_length > 0 && wish.block_bytes > 0);
  const size_t one_longest = size_t(layout.peak_blocks(layout.max_length));
  const size_t many =
      size_t(layout.peak_blocks(std::min(layout.max_length, kModerateContext))) * size_t(wish.max_sequences);
  const size_t wanted = std::max(one_longest, many);
  constexpr size_t kMostBlocks = size_t{1} << 30;
  const size_t allowed = (wish.kv_bytes ? wish.kv_bytes : wish.free_bytes / 2) / wish.block_bytes;
  const size_t blocks = std::min(wish.kv_bytes ? allowed : std::min(wanted, allowed), kMostBlocks);

  KvSize size{layout, int(blocks), {}};
  size.layout.max_length = blocks >= one_longest ? layout.max_length : longest_context(layout, blocks);
  if (size.layout.max_length < std::min(kMinContext, layout.max_length)) {
    const int least = std::min(kMinContext, layout.max_length);
    return Error{
        ErrorCode::kResourceExhausted,
        fmt::format(
            "{:.1f} MiB for keys and values are not enough for a context of {} tokens, which takes {:.1f} "
            "MiB{}",
            mib(wish.kv_bytes ? wish.kv_bytes : wish.free_bytes / 2), least,
            mib(size_t(layout.peak_blocks(least)) * wish.block_bytes),
            wish.kv_bytes ? "; give more, or 0 to have it chosen from the free memory"
                          : fmt::format(" ({:.1f} MiB are free, half of it may be used): use a smaller "
                                        "model or free some memory",
                                        mib(wish.free_bytes))),
        "kv_bytes"};
  }
  const char* decided = wish.kv_bytes         ? "as configured"
                        : blocks < wanted     ? "half of the free memory"
                        : one_longest >= many ? "one request of the whole context"
                                              : "all sequences at a moderate length";
  size.reason = fmt::format("{} blocks of {} tokens, {:.0f} MiB ({}{}); context {}{}", blocks,
                            layout.block_tokens, mib(blocks * wish.block_bytes), decided,
                            blocks * wish.block_bytes > wish.free_bytes
                                ? fmt::format("; more than the {:.0f} MiB that are free", mib(wish.free_bytes))
                                : "",
                            size.layout.max_length,
                            size.layout.max_length < layout.max_length
                                ? fmt::format(", shrunk from {} for lack of memory", layout.max_length)
                                : "");
  return size;
}

}  // namespace sluice
