// Sequences by deadline, the next one first: a binary heap whose members know their place, so that one that
// ends leaves in logarithmic time. Owned by the engine thread. Allocates nothing up to the reserved size.
#pragma once

#include <utility>
#include <vector>

#include "base/check.h"
#include "sched/sequence.h"

namespace sluice {

class DeadlineHeap {
 public:
  void reserve(size_t sequences) { heap_.reserve(sequences); }

  // The one whose deadline is next; null: none.
  Sequence* first() const { return heap_.empty() ? nullptr : heap_.front(); }

  // Of those without a deadline nothing is noted.
  void add(Sequence* s) {
    if (!s->request.deadline) return;
    heap_.push_back(s);
    rise(heap_.size() - 1);
  }
  void remove(Sequence* s) {
    if (s->deadline_place < 0) return;
    const auto place = size_t(std::exchange(s->deadline_place, -1));
    CHECK(heap_[place] == s);
    Sequence* last = heap_.back();
    heap_.pop_back();
    if (last == s) return;
    heap_[place] = last;
    sink(place);
    rise(place);
  }

 private:
  TimeNs at(size_t i) const { return heap_[i]->request.deadline; }
  void place(size_t i, Sequence* s) {
    heap_[i] = s;
    s->deadline_place = int(i);
  }
  void rise(size_t i) {
    Sequence* s = heap_[i];
    for (; i > 0 && s->request.deadline < at((i - 1) / 2); i = (i - 1) / 2) place(i, heap_[(i - 1) / 2]);
    place(i, s);
  }
  void sink(size_t i) {
    Sequence* s = heap_[i];
    for (size_t below; (below = 2 * i + 1) < heap_.size(); i = below) {
      if (below + 1 < heap_.size() && at(below + 1) < at(below)) ++below;
      if (at(below) >= s->request.deadline) break;
      place(i, heap_[below]);
    }
    place(i, s);
  }

  std::vector<Sequence*> heap_;
};

}  // namespace sluice
