// Who waits, and who of them is next: lanes by weight, inside a lane tenants by deficit round robin over tokens
// (Shreedhar and Varghese, 1995), of one tenant first come, first served.
//
// A request costs its tenant the prompt and the answer that is expected of it; when it ends, the difference to
// what it came to is settled. Tenants lie in a table of fixed size by hash: two that collide share a turn
// (stochastic fairness, McKenney 1990). A tenant alone in its lane runs up no debt worth speaking of.
//
// Three kinds wait:
//   fresh      never admitted
//   chosen     of those, the batch's members (batching.h), in the order in which lanes and tenants had their
//   turn preempted  admitted before; by order of arrival, before the fresh ones of their lane
//
// Owned by the engine thread. Adding and removing take constant time (a preempted one: as many steps as others
// of its lane are preempted), finding the next one at most a few rounds over the tenants that wait. Nothing
// allocates after construction.
#pragma once

#include <iterator>
#include <limits>
#include <vector>

#include "sched/lanes.h"
#include "sched/sequence.h"
#include "sched/sequence_list.h"

namespace sluice {

class WaitingQueue {
 public:
  static constexpr int kTenants = 256;           // that a lane tells apart
  static constexpr int kQuantumTokens = 512;     // of a turn
  static constexpr int kExpectedTokens = 256;    // of an answer, at most, until it has ended
  static constexpr int kMostDebtTokens = 16384;  // that a tenant takes with it into its next turns
  static constexpr TimeNs kWhenever = std::numeric_limits<TimeNs>::max();

  explicit WaitingQueue(const LaneWeights& weights);
  WaitingQueue(const WaitingQueue&) = delete;

  void set_weights(const LaneWeights& weights) { weights_ = weights; }

  void add(Sequence* s);
  void add_preempted(Sequence* s);
  // Charges its tenant if it was fresh.
  void remove(Sequence* s);
  // Removes one that ends without having started; nothing is charged.
  void drop(Sequence* s);
  // One that was charged has ended: its tenant pays what it really came to.
  void settle(const Sequence& s);

  // Who of a lane is next; null: nobody. Preempted ones first, but for those whose client does not read.
  Sequence* next(Lane lane);
  // Makes `count` fresh ones that arrived by then a batch's members. Lanes take turns by weight.
  void choose(int count, TimeNs arrived_by);
  // Who of a batch is next: preempted ones by lane, then the chosen.
  Sequence* next_of_batch();
  // The lane that has had least of its due.
  int hungriest(PerLane<bool> among) const;

  const SequenceList<&Sequence::arrival>& fresh() const { return fresh_; }  // by arrival; without the chosen
  bool has_chosen() const { return !chosen_.empty(); }
  bool has_preempted() const { return preempted_count_ > 0; }
  int waiting(int lane) const { return waiting_[size_t(lane)]; }  // of all three kinds
  int of_batch() const { return preempted_count_ + chosen_count_; }
  size_t size() const { return size_t(waiting_[0] + waiting_[1] + waiting_[2]); }
  int never_admitted() const { return int(size()) - preempted_count_; }

  // All that wait: preempted ones by lane, the chosen, the fresh.
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Sequence*;
    using difference_type = std::ptrdiff_t;
    using pointer = Sequence* const*;
    using reference = Sequence* const&;
    Iterator() = default;
    Iterator(const WaitingQueue* queue, int list) : queue_(queue), list_(list) { settle(); }
    Sequence* const& operator*() const { return at_; }
    Iterator& operator++() {
      at_ = list_ <= kLanes ? at_->turn.next : at_->arrival.next;
      if (!at_) ++list_, settle();
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    static constexpr int kLists = kLanes + 2;
    void settle() {
      for (at_ = nullptr; list_ < kLists; ++list_)
        if ((at_ = queue_->first_of(list_))) return;
    }
    const WaitingQueue* queue_ = nullptr;
    int list_ = 0;
    Sequence* at_ = nullptr;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {}; }
  bool empty() const { return size() == 0; }
  Sequence* front() const { return *begin(); }

 private:
  struct Tenant {
    SequenceList<&Sequence::turn> queue;
    int64_t balance = 0;  // tokens that it may still have in this turn
    Tenant* before = nullptr;
    Tenant* after = nullptr;  // the ring of those that have somebody waiting
  };
  struct LaneQueue {
    Tenant* turn = nullptr;
    SequenceList<&Sequence::turn> preempted;
    double served = 0;  // tokens over weight: start-time fair queueing between the lanes
  };

  Sequence* first_of(int list) const {
    return list < kLanes    ? lanes_[size_t(list)].preempted.front()
           : list == kLanes ? chosen_.front()
                            : fresh_.front();
  }
  Tenant& tenant_of(const Sequence& s);
  Sequence* next_fresh(LaneQueue& lane, TimeNs arrived_by);
  void leave_ring(LaneQueue& lane, Tenant& tenant);
  void unlink(Sequence* s);
  void charge(Sequence* s);

  LaneWeights weights_;
  PerLane<LaneQueue> lanes_;
  std::vector<Tenant> tenants_;  // [lane, kTenants]
  SequenceList<&Sequence::arrival> fresh_;
  SequenceList<&Sequence::turn> chosen_;
  PerLane<int> waiting_{};
  int preempted_count_ = 0, chosen_count_ = 0;
  double served_last_ = 0;  // `served` of the lane that was served last: where a lane that was idle begins
};

}  // namespace sluice
