#include "engine/kv_size.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "tensor/backend.h"

namespace sluice {
namespace {

// Blocks that one request takes where contexts have this length.
int peak_blocks_at(KvLayout layout, int length) {
  layout.max_length = length;
  return layout.peak_blocks(length);
}

// The longest context, in whole blocks, that fits `blocks`; peak_blocks rises with length.
int longest_context(const KvLayout& layout, size_t blocks) {
  int fits = 0, too_long = layout.row_capacity() + 1;
  while (too_long - fits > 1) {
    const int middle = fits + (too_long - fits) / 2;
    (size_t(peak_blocks_at(layout, middle * layout.block_tokens)) <= blocks ? fits : too_long) = middle;
  }
  return std::min(fits * layout.block_tokens, layout.max_length);
}

// Bytes that the pool may take.
size_t budget(const KvWish& wish) {
  return wish.kv_bytes ? wish.kv_bytes : wish.card.total ? wish.card.left() : wish.free_bytes / 2;
}
size_t available(const KvWish& wish) { return wish.card.total ? wish.card.left() : wish.free_bytes; }

// Blocks that could be of use, and why so many.
struct Wanted {
  size_t blocks = 0;
  const char* reason = "";
};
Wanted wanted(const KvWish& wish) {
  const KvLayout& layout = wish.layout;
  const size_t one_longest = size_t(layout.peak_blocks(layout.max_length)), seats = size_t(wish.max_sequences);
  if (wish.card.total) return {one_longest * seats, "all sequences at the whole context"};
  const size_t many = size_t(layout.peak_blocks(std::min(layout.max_length, kModerateContext))) * seats;
  if (one_longest >= many) return {one_longest, "one request of the whole context"};
  return {many, "all sequences at a moderate length"};
}

Error card_too_small(const CardMemory& card, int least, size_t needed) {
  DeviceInfo device;
  device.memory_others = card.others;
  return {
      ErrorCode::kResourceExhausted,
      fmt::format(
          "the card is {:.2f} GiB short: keys and values for a context of {} tokens take {:.2f} GiB; of "
          "{:.1f} GiB, {:.2f} are in use by weights, activations and workspaces{}, and gpu.memory_fraction {} "
          "allows {:.2f} in all. {}ower engine.step_tokens, engine.max_sequences or engine.max_context, or use "
          "a smaller model or another card (--device cuda:N){}",
          gib(card.used + needed - card.allowed()), least, gib(needed), gib(card.total), gib(card.used),
          card.others ? " and other programs" : "", card.fraction, gib(card.allowed()),
          card.allowed() < card.most() ? "Raise gpu.memory_fraction, l" : "L", others_on_card(device)),
      "gpu.memory_fraction"};
}

Error too_small(const KvWish& wish) {
  const int least = std::min(kMinContext, wish.layout.max_length);
  const size_t needed = size_t(peak_blocks_at(wish.layout, least)) * wish.block_bytes;
  if (wish.card.total && !wish.kv_bytes) return card_too_small(wish.card, least, needed);
  const std::string missed =
      wish.kv_bytes ? fmt::format(
                          "{} bytes for keys and values are not enough for a context of {} tokens, which "
                          "takes {}; give more, or 0 to have it chosen from the free memory",
                          wish.kv_bytes, least, needed)
                    : fmt::format(
                          "{:.1f} MiB for keys and values are not enough for a context of {} tokens, which "
                          "takes {:.1f} MiB ({:.1f} MiB are free, half of it may be used): use a smaller "
                          "model or free some memory",
                          mib(budget(wish)), least, mib(needed), mib(wish.free_bytes));
  return {ErrorCode::kResourceExhausted, missed, "engine.kv_bytes"};
}

// More than is free may become free; more than there is never does, and its tables alone would fill memory.
Status check_there_is_so_much(const KvWish& wish) {
  const size_t all = wish.card.total ? wish.card.total : wish.machine_bytes;
  if (all == 0 || wish.kv_bytes <= all) return {};
  return Error{
      ErrorCode::kResourceExhausted,
      fmt::format("{} bytes are more than the {}'s {}; give less, or 0 to have it chosen from the free "
                  "memory",
                  wish.kv_bytes, wish.card.total ? "card" : "machine", all),
      "engine.kv_bytes"};
}

}  // namespace

Result<KvSize> size_kv(const KvWish& wish) {
  const KvLayout& layout = wish.layout;
  CHECK(layout.block_tokens > 0 && layout.max_length > 0 && wish.block_bytes > 0);
  if (Status ok = check_there_is_so_much(wish); !ok) return std::move(ok).error();
  const size_t one_longest = size_t(layout.peak_blocks(layout.max_length));
  const Wanted want = wanted(wish);
  constexpr size_t kMostBlocks = size_t{1} << 30;
  const size_t allowed = budget(wish) / wish.block_bytes;
  const size_t blocks = std::min(wish.kv_bytes ? allowed : std::min(want.blocks, allowed), kMostBlocks);

  KvSize size{.layout = layout, .blocks = int(blocks), .reason = {}};
  size.layout.max_length = blocks >= one_longest ? layout.max_length : longest_context(layout, blocks);
  if (size.layout.max_length < std::min(kMinContext, layout.max_length)) return too_small(wish);
  const char* decided = wish.kv_bytes           ? "as configured"
                        : blocks >= want.blocks ? want.reason
                        : wish.card.total       ? "what is left of the card's share"
                                                : "half of the free memory";
  size.exceeds_free = blocks * wish.block_bytes > available(wish);
  size.reason = fmt::format(
      "{} blocks of {} tokens, {:.0f} MiB ({}{}); context {}{}", blocks, layout.block_tokens,
      mib(blocks * wish.block_bytes), decided,
      size.exceeds_free ? fmt::format("; more than the {:.0f} MiB that are free", mib(available(wish))) : "",
      size.layout.max_length,
      size.layout.max_length < layout.max_length
          ? fmt::format(", shrunk from {} {}", layout.max_length,
                        wish.kv_bytes ? "since engine.kv_bytes holds no more" : "for lack of memory")
          : "");
  return size;
}

}  // namespace sluice
