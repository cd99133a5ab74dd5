#include "sched/waiting_queue.h"

#include <algorithm>

namespace sluice {
namespace {

int64_t cost_of(const Sequence& s) {
  return s.prompt_tokens + std::min(s.request.max_tokens, WaitingQueue::kExpectedTokens);
}

}  // namespace

WaitingQueue::WaitingQueue(const LaneWeights& weights)
    : weights_(weights), tenants_(size_t(kLanes) * kTenants) {}

WaitingQueue::Tenant& WaitingQueue::tenant_of(const Sequence& s) {
  const uint32_t place = (s.request.tenant * 2654435761u) >> 24;  // Fibonacci hashing: the upper 8 bits
  static_assert(kTenants == 256);
  return tenants_[size_t(s.request.lane) * kTenants + place];
}

void WaitingQueue::add(Sequence* s) {
  LaneQueue& lane = lanes_[size_t(s->request.lane)];
  Tenant& tenant = tenant_of(*s);
  // A lane that had nothing to do has no claim on what it did not use.
  if (waiting_[size_t(s->request.lane)]++ == 0) lane.served = std::max(lane.served, served_last_);
  if (tenant.queue.empty()) {
    if (!lane.turn) {
      tenant.before = tenant.after = lane.turn = &tenant;
    } else {  // last of the round
      tenant.after = lane.turn;
      tenant.before = lane.turn->before;
      tenant.before->after = tenant.after->before = &tenant;
    }
  }
  tenant.queue.push_back(s);
  fresh_.push_back(s);
  s->waits_as = WaitsAs::fresh;
}

void WaitingQueue::add_preempted(Sequence* s) {
  auto& list = lanes_[size_t(s->request.lane)].preempted;
  Sequence* before = list.back();
  while (before && before->order > s->order) before = before->turn.before;
  list.insert_after(before, s);
  s->waits_as = WaitsAs::preempted;
  ++preempted_count_;
  ++waiting_[size_t(s->request.lane)];
}

void WaitingQueue::remove(Sequence* s) {
  if (s->waits_as == WaitsAs::fresh) charge(s);
  unlink(s);
}

void WaitingQueue::drop(Sequence* s) { unlink(s); }

void WaitingQueue::unlink(Sequence* s) {
  LaneQueue& lane = lanes_[size_t(s->request.lane)];
  if (s->waits_as == WaitsAs::fresh) {
    Tenant& tenant = tenant_of(*s);
    tenant.queue.erase(s);
    fresh_.erase(s);
    if (tenant.queue.empty()) leave_ring(lane, tenant);
  } else if (s->waits_as == WaitsAs::chosen) {
    chosen_.erase(s);
    --chosen_count_;
  } else {
    CHECK(s->waits_as == WaitsAs::preempted);
    lane.preempted.erase(s);
    --preempted_count_;
  }
  s->waits_as = WaitsAs::none;
  --waiting_[size_t(s->request.lane)];
}

void WaitingQueue::leave_ring(LaneQueue& lane, Tenant& tenant) {
  if (tenant.after == &tenant) {
    lane.turn = nullptr;
  } else {
    tenant.before->after = tenant.after;
    tenant.after->before = tenant.before;
    if (lane.turn == &tenant) lane.turn = tenant.after;
  }
  tenant.before = tenant.after = nullptr;
  // Nothing is saved up for later; what was had in advance is remembered.
  tenant.balance = std::clamp<int64_t>(tenant.balance, -kMostDebtTokens, 0);
}

void WaitingQueue::charge(Sequence* s) {
  LaneQueue& lane = lanes_[size_t(s->request.lane)];
  s->charged_tokens = cost_of(*s);
  tenant_of(*s).balance -= s->charged_tokens;
  served_last_ = lane.served;
  lane.served += double(s->charged_tokens) / weights_[size_t(s->request.lane)];
}

void WaitingQueue::settle(const Sequence& s) {
  const int64_t owed = s.prompt_tokens - s.cached_tokens + s.generated() - s.charged_tokens;
  Tenant& tenant = tenant_of(s);
  tenant.balance = std::max<int64_t>(tenant.balance - owed, -kMostDebtTokens);
  if (tenant.queue.empty()) tenant.balance = std::min<int64_t>(tenant.balance, 0);
  lanes_[size_t(s.request.lane)].served += double(owed) / weights_[size_t(s.request.lane)];
}

// Whoever has the turn keeps it while it can pay; where nobody can, all get as many quanta as the first of them
// needs. Rounds that nobody could have used are so skipped, and the order is that of the rounds one by one.
Sequence* WaitingQueue::next_fresh(LaneQueue& lane, TimeNs arrived_by) {
  while (lane.turn) {
    int64_t quanta = std::numeric_limits<int64_t>::max();
    Tenant* tenant = lane.turn;
    do {
      Sequence* head = tenant->queue.front();
      if (head->arrived_at <= arrived_by) {
        const int64_t lacks = cost_of(*head) - tenant->balance;
        if (lacks <= 0) {
          lane.turn = tenant;
          return head;
        }
        quanta = std::min(quanta, (lacks + kQuantumTokens - 1) / kQuantumTokens);
      }
      tenant = tenant->after;
    } while (tenant != lane.turn);
    if (quanta == std::numeric_limits<int64_t>::max()) return nullptr;  // all came too late
    do {
      if (tenant->queue.front()->arrived_at <= arrived_by) tenant->balance += quanta * kQuantumTokens;
      tenant = tenant->after;
    } while (tenant != lane.turn);
    lane.turn = lane.turn->after;  // its quantum is used up: the turn passes on
  }
  return nullptr;
}

Sequence* WaitingQueue::next(Lane lane) {
  LaneQueue& queue = lanes_[size_t(lane)];
  for (Sequence* s = queue.preempted.front(); s; s = s->turn.next)
    if (!s->paused && !s->awaits_mask) return s;
  return next_fresh(queue, kWhenever);
}

int WaitingQueue::hungriest(PerLane<bool> among) const {
  int found = -1;
  for (int i = 0; i < kLanes; ++i)
    if (among[size_t(i)] && (found < 0 || lanes_[size_t(i)].served < lanes_[size_t(found)].served)) found = i;
  return found;
}

void WaitingQueue::choose(int count, TimeNs arrived_by) {
  for (; count > 0; --count) {
    PerLane<bool> has{};
    for (int i = 0; i < kLanes; ++i) has[size_t(i)] = next_fresh(lanes_[size_t(i)], arrived_by) != nullptr;
    const int lane = hungriest(has);
    CHECK(lane >= 0, "a batch is larger than what waits");
    Sequence* s = next_fresh(lanes_[size_t(lane)], arrived_by);
    remove(s);
    chosen_.push_back(s);
    ++chosen_count_;
    s->waits_as = WaitsAs::chosen;
    ++waiting_[size_t(lane)];
  }
}

Sequence* WaitingQueue::next_of_batch() {
  for (const LaneQueue& lane : lanes_)
    for (Sequence* s = lane.preempted.front(); s; s = s->turn.next)
      if (!s->paused && !s->awaits_mask) return s;
  return chosen_.front();
}

}  // namespace sluice
