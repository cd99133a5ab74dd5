#include "text/token_table.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace sluice {
namespace {

// Multiply-fold over eight bytes at a time; tokens are short, so setup cost is what matters.
uint32_t hash_text(std::string_view text) {
  uint64_t h = 0x9E3779B97F4A7C15u ^ text.size();
  const char* p = text.data();
  size_t n = text.size();
  auto mix = [&h](uint64_t word) {
    const auto product = static_cast<unsigned __int128>(h ^ word) * 0xD6E8FEB86659FD93u;
    h = uint64_t(product) ^ uint64_t(product >> 64);
  };
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    mix(word);
  }
  uint64_t tail = 0;
  std::memcpy(&tail, p, n);
  mix(tail);
  return uint32_t(h ^ (h >> 32));
}

uint64_t mix_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return pair ^ (pair >> 32);
}

size_t slots_for(size_t expected) { return std::bit_ceil(expected * 2 + 2); }

}  // namespace

void StringArena::reserve(size_t strings, size_t bytes) {
  ends_.reserve(strings + 1);
  bytes_.reserve(bytes);
}

void StringArena::add(std::string_view text) {
  bytes_.insert(bytes_.end(), text.begin(), text.end());
  CHECK(bytes_.size() <= UINT32_MAX);
  ends_.push_back(uint32_t(bytes_.size()));
}

TokenTable::TokenTable(const StringArena* texts, size_t expected)
    : texts_(texts), slots_(slots_for(expected), Slot{0, -1}), mask_(slots_.size() - 1) {}

void TokenTable::insert(int32_t id) {
  const std::string_view text = (*texts_)[size_t(id)];
  const uint32_t hash = hash_text(text);
  size_t at = hash & mask_;
  for (; slots_[at].id >= 0; at = (at + 1) & mask_) {
    if (slots_[at].hash == hash && (*texts_)[size_t(slots_[at].id)] == text) return;
  }
  slots_[at] = {hash, id};
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const uint32_t hash = hash_text(text);
  for (size_t at = hash & mask_; slots_[at].id >= 0; at = (at + 1) & mask_) {
    if (slots_[at].hash == hash && (*texts_)[size_t(slots_[at].id)] == text) return slots_[at].id;
  }
  return -1;
}

MergeTable::MergeTable(size_t expected)
    : slots_(slots_for(expected), Slot{UINT64_MAX, {}}), mask_(slots_.size() - 1) {}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  size_t at = mix_pair(pair) & mask_;
  for (; slots_[at].pair != UINT64_MAX; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return;
  }
  slots_[at] = {pair, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return {};
  const uint64_t pair = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  for (size_t at = mix_pair(pair) & mask_; slots_[at].pair != UINT64_MAX; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) return slots_[at].merge;
  }
  return {};
}

void ByteTrie::insert(std::string_view text, int32_t id) {
  if (text.empty()) return;
  starts_[uint8_t(text[0])] = true;
  int32_t node = root();
  for (const char c : text) {
    int32_t next = step(node, uint8_t(c));
    if (next < 0) {
      if ((ids_.size() + 1) * 2 > slots_.size()) grow();
      next = int32_t(ids_.size());
      ids_.push_back(-1);
      const uint64_t key = uint64_t(node) * 256 + uint8_t(c) + 1;
      size_t at = mix_pair(key) & (slots_.size() - 1);
      while (slots_[at].key != 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = {key, next};
    }
    node = next;
  }
  if (ids_[size_t(node)] < 0) ids_[size_t(node)] = id;
}

int32_t ByteTrie::step(int32_t node, uint8_t byte) const {
  const uint64_t key = uint64_t(node) * 256 + byte + 1;
  for (size_t at = mix_pair(key) & (slots_.size() - 1); slots_[at].key != 0;
       at = (at + 1) & (slots_.size() - 1)) {
    if (slots_[at].key == key) return slots_[at].node;
  }
  return -1;
}

void ByteTrie::grow() {
  std::vector<Slot> old(slots_.size() * 2, Slot{0, -1});
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key == 0) continue;
    size_t at = mix_pair(slot.key) & (slots_.size() - 1);
    while (slots_[at].key != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

}  // namespace sluice
