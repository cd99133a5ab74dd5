// A list of sequences that are linked through a member of theirs. Owns nothing, allocates nothing.
#pragma once

#include "base/check.h"
#include "sched/sequence.h"

namespace sluice {

template <SequenceLinks Sequence::*links>
class SequenceList {
 public:
  Sequence* front() const { return first_; }
  Sequence* back() const { return last_; }
  bool empty() const { return first_ == nullptr; }

  void push_back(Sequence* s) { insert_after(last_, s); }
  // After null: at the front.
  void insert_after(Sequence* before, Sequence* s) {
    Sequence* const after = before ? (before->*links).next : first_;
    s->*links = {before, after};
    (before ? (before->*links).next : first_) = s;
    (after ? (after->*links).before : last_) = s;
  }
  void erase(Sequence* s) {
    const auto [before, after] = s->*links;
    CHECK((before ? (before->*links).next : first_) == s, "not in this list");
    (before ? (before->*links).next : first_) = after;
    (after ? (after->*links).before : last_) = before;
    s->*links = {};
  }

 private:
  Sequence* first_ = nullptr;
  Sequence* last_ = nullptr;
};

}  // namespace sluice
