// Token texts in one block of memory, and an open-addressing hash from text to id. Built once, then read by any
// number of threads. std::unordered_map<std::string, …> was 3x slower to fill and 2x slower to ask.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

class StringArena {
 public:
  void reserve(size_t strings, size_t bytes);
  void add(std::string_view text);
  std::string_view operator[](size_t i) const { return {bytes_.data() + ends_[i], ends_[i + 1] - ends_[i]}; }
  size_t size() const { return ends_.size() - 1; }

 private:
  std::vector<char> bytes_;
  std::vector<uint32_t> ends_{0};  // ends_[i]..ends_[i+1] is string i; VocabularyData is limited to 2^31 bytes
};

class TokenTable {
 public:
  // The arena must outlive the table and not grow any more.
  TokenTable(const StringArena* texts, size_t expected);
  TokenTable() = default;
  // The first id wins where two tokens share a text.
  void insert(int32_t id);
  int32_t find(std::string_view text) const;  // -1: none

 private:
  struct Slot {
    uint32_t hash;
    int32_t id;
  };
  const StringArena* texts_ = nullptr;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// From a pair of neighbouring tokens to the token they merge into.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;  // lower merges first
    int32_t id = -1;
  };
  static constexpr uint32_t kNoRank = 0xFFFFFFFFu;

  explicit MergeTable(size_t expected = 0);
  void insert(int32_t left, int32_t right, Merge merge);  // the first merge of a pair wins
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  std::vector<Slot> slots_;
  size_t mask_;
};

// Bytes → ids by longest match, for special tokens and for Unigram.
class ByteTrie {
 public:
  void insert(std::string_view text, int32_t id);
  int32_t root() const { return 0; }
  int32_t step(int32_t node, uint8_t byte) const;  // -1: nothing goes on from here
  int32_t id(int32_t node) const { return ids_[size_t(node)]; }
  bool starts(uint8_t byte) const { return starts_[byte]; }

 private:
  void grow();
  struct Slot {
    uint64_t key;  // node * 256 + byte + 1; 0: free
    int32_t node;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(64, Slot{0, -1});
  std::vector<int32_t> ids_{-1};
  bool starts_[256] = {};
};

}  // namespace sluice
