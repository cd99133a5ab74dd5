// Random traffic through a scheduler with a fake executor, two steps in flight, and the invariants that are
// checked at every step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "sched/scheduler.h"

namespace sluice {

struct Traffic {
  uint32_t seed = 0;
  int requests = 60;
  int blocks = 0;  // beyond what one sequence alone needs
  std::vector<int> windows = {0};
  KvTiering tiering = {};
  bool whole_context = false;
  Policy policy;
  int max_length = 96;
  int lanes = kLanes;
  bool grow = false;            // short prompts, answers of the full length
  bool shared_prompts = false;  // few beginnings, and answers that are asked about further
  int salts = 1;
  int host_slots = 0;                          // memory outside the pool
  int disk_blocks = 0;                         // in files, of the largest size
  double corrupt_share = 0, failed_share = 0;  // of jobs on files
  double cancel_share = 0.1, pause_share = 0.05, deadline_share = 0.1, host_state_share = 0.2;
};

inline constexpr int kTenants = 5;

// Files that take their time, and are not to be relied on.
class FakeFiles final : public DiskQueue {
 public:
  using Content = std::array<int32_t, 4>;
  struct File {
    KvTier tier;
    Content content;
  };
  static constexpr size_t kMostJobs = 8;

  bool post(const DiskJob& job) override {
    if (jobs.size() == kMostJobs) return false;
    jobs.push_back(job);
    return true;
  }

  std::deque<DiskJob> jobs;
  std::map<std::pair<BlockKey, int>, File> files;
};

class Simulation {
 public:
  explicit Simulation(const Traffic& t) : traffic_(t), random_(t.seed) {
    layout_ = {.block_tokens = 4,
               .windows = t.windows,
               .max_length = t.max_length,
               .max_step_tokens = t.policy.step_tokens,
               .tiering = t.tiering,
               .whole_context = t.whole_context};
    const int blocks = layout_.peak_blocks(t.max_length) + t.blocks;
    if (t.host_slots > 0) {
      host_ =
          std::make_unique<HostTier>(HostTierShape{t.host_slots, kSlotUnits, size_t(t.disk_blocks) * kSlotUnits,
                                                   t.disk_blocks * kSlotUnits},
                                     t.disk_blocks ? &files_ : nullptr);
      host_memory_.assign(size_t(t.host_slots) * kSlotUnits * 4, kNothing);
    }
    scheduler_ = std::make_unique<Scheduler>(t.policy, layout_, blocks, host_.get());
    cache_.assign(size_t(blocks) * kSlotUnits * 4, kNothing);
  }

  void run() {
    const int limit = 200000;
    while (finished_ + refused_ < traffic_.requests && now_ < limit) {
      ++now_;
      arrive();
      disturb();
      if (flying_.size() < 2) {
        auto plan = std::make_unique<StepPlan>();
        plan->reserve(traffic_.policy.max_running, traffic_.policy.max_queue, layout_, 6);
        const std::vector<Sequence*> before(scheduler_->running().begin(), scheduler_->running().end());
        scheduler_->plan(now_, *plan);
        const bool busy = std::any_of(before.begin(), before.end(), [&](Sequence* s) {
          return std::find(plan->expired.begin(), plan->expired.end(), s) == plan->expired.end();
        });
        check_batch(*plan, busy);
        check_plan(*plan);
        found_.looked_up_tokens += plan->looked_up_tokens, found_.cached_tokens += plan->cached_tokens;
        found_.resumed_tokens += plan->resumed_tokens;
        for (Sequence* s : plan->expired) ended(s);
        if (!plan->empty()) {
          auto tables = tables_of(*plan);
          flying_.push_back({std::move(plan), std::move(tables)});
        }
      }
      if (flying_.size() == 2 || (!flying_.empty() && chance(0.3))) land();
      while (!files_.jobs.empty() && chance(0.5)) work_on_files();
      check_blocks();
      if (testing::Test::HasFatalFailure()) return;
    }
    while (!flying_.empty()) land();
    while (!files_.jobs.empty()) work_on_files();
    if (host_) host_->check();
    ASSERT_LT(now_, limit) << "requests were left unfinished";
    EXPECT_TRUE(scheduler_->idle());
    EXPECT_EQ(scheduler_->blocks().used(), 0);
    scheduler_->forget_prefixes();
    EXPECT_EQ(scheduler_->blocks().cached(), 0);
    EXPECT_EQ(scheduler_->blocks().coming(), 0);
    if (!traffic_.tiering.on()) {
      EXPECT_EQ(scheduler_->blocks().free(), scheduler_->blocks().total());
    }
    EXPECT_EQ(started_, finished_);
    int64_t looked_up = 0;
    for (const auto& s : sequences_) looked_up += s->looked_up ? s->prompt_tokens : 0;
    EXPECT_EQ(found_.looked_up_tokens, looked_up) << "each prompt is looked up once";
    EXPECT_EQ(found_.cached_tokens, cached_tokens()) << "what did not come is no hit";
    EXPECT_EQ(found_.resumed_tokens, resumed_tokens());
    for (const auto& s : sequences_) EXPECT_TRUE(s->gone());
  }

  int preemptions() const {
    int n = 0;
    for (const auto& s : sequences_) n += s->preemptions;
    return n;
  }
  // Of the steps planned while somebody waited, those that found the pool at 98 % or more.
  double full_share() const { return pressed_ ? double(full_) / pressed_ : 0; }
  int64_t cached_tokens() const {
    int64_t n = 0;
    for (const auto& s : sequences_) n += s->cached_tokens;
    return n;
  }
  int64_t resumed_tokens() const {
    int64_t n = 0;
    for (const auto& s : sequences_) n += s->resumed_tokens;
    return n;
  }
  int copies() const { return copies_; }
  int saved() const { return saved_; }
  int restored() const { return restored_; }
  int read_from_files() const { return read_; }
  int lost() const { return lost_; }
  int moves_to(KvTier tier) const { return moves_to_[size_t(tier)]; }
  int gaps_closed() const { return gaps_closed_; }
  int moves_alone() const { return moves_alone_; }
  uint64_t evicted() const { return scheduler_->blocks().evicted(); }
  int batches() const { return batches_; }
  int64_t computed_tokens() const { return computed_tokens_; }
  int64_t needed_tokens() const {
    int64_t n = 0;
    for (const auto& s : sequences_) n += int64_t(s->ids.size());
    return n;
  }

 private:
  static constexpr int32_t kNothing = -1;
  struct Flight {
    std::unique_ptr<StepPlan> plan;
    std::vector<std::vector<KvRef>> tables;  // [entry, group] rows when it was planned
  };

  bool chance(double p) { return double(random_()) / 4294967296.0 < p; }
  int between(int a, int b) { return a + int(random_() % uint32_t(b - a + 1)); }

  void arrive() {
    if (arrived_ == traffic_.requests || !chance(traffic_.grow ? 1 : 0.3)) return;
    ++arrived_;
    Request r;
    r.prompt = traffic_.shared_prompts ? shared_prompt() : std::vector<int32_t>();
    const int prompt = !r.prompt.empty() ? int(r.prompt.size())
                       : traffic_.grow   ? between(1, 8)
                                         : between(1, traffic_.max_length - 1);
    while (int(r.prompt.size()) < prompt) r.prompt.push_back(traffic_.shared_prompts ? between(0, 9) : 3);
    if (traffic_.salts > 1) r.cache_salt[1] = random_() % uint32_t(traffic_.salts);
    if (traffic_.shared_prompts && chance(0.05)) r.sampling.prompt_top_logprobs = 0;
    r.max_tokens = traffic_.grow ? traffic_.max_length - prompt : between(0, traffic_.max_length - prompt);
    if (chance(traffic_.deadline_share)) r.deadline = now_ + between(1, 200);
    r.lane = Lane(between(0, traffic_.lanes - 1));
    r.tenant = uint32_t(between(0, kTenants - 1));
    auto s = std::make_unique<Sequence>(std::move(r));
    s->needs_host_state = chance(traffic_.host_state_share);
    if (host_) s->name_blocks(layout_.block_tokens);
    s->arrived_at = now_;
    if (!scheduler_->add(s.get())) {
      ++refused_;
      return;
    }
    ++started_;
    sequences_.push_back(std::move(s));
  }

  // What an earlier one had, cut or gone on with.
  std::vector<int32_t> shared_prompt() {
    if (sequences_.empty() || chance(0.2)) return {};
    const Sequence& earlier = *sequences_[random_() % std::min<size_t>(sequences_.size(), 8)];
    std::vector<int32_t> ids(earlier.ids.begin(), earlier.ids.begin() + between(1, int(earlier.ids.size())));
    for (int more = between(0, 12); more > 0; --more) ids.push_back(between(0, 9));
    ids.resize(std::min(ids.size(), size_t(traffic_.max_length) - 1));
    return ids;
  }

  std::vector<std::vector<KvRef>> tables_of(const StepPlan& plan) const {
    std::vector<std::vector<KvRef>> tables;
    for (const PlanEntry& e : plan.entries)
      for (int g = 0; g < layout_.groups(); ++g) {
        auto& row = tables.emplace_back();
        for (const BlockId b : e.sequence->table->row(g)) row.push_back(scheduler_->blocks().ref(b));
      }
    return tables;
  }

  // A place's tokens stand in its first quarter; the others are emptied whenever it is filled.
  int32_t* place(KvRef ref) { return cache_.data() + kv_first_unit(ref) * 4; }
  void empty_rest(KvRef ref) { std::fill_n(place(ref) + 4, (kv_units(kv_tier(ref)) - 1) * 4, kNothing); }

  // All are read before any is written: a device may make them in any order.
  void make_moves(const StepPlan& plan) {
    std::vector<std::array<int32_t, 4>> read;
    for (const auto* moves : {&plan.copies, &plan.moves})
      for (const auto& [from, to] : *moves) std::copy_n(place(from), 4, read.emplace_back().begin());
    size_t i = 0;
    std::set<int64_t> filled;
    for (const auto* moves : {&plan.copies, &plan.moves}) {
      for (const auto& [from, to] : *moves) {
        for (int u = 0; u < kv_units(kv_tier(to)); ++u)
          ASSERT_TRUE(filled.insert(kv_first_unit(to) + u).second) << "two moves to one place";
        std::copy_n(read[i++].begin(), 4, place(to));
        empty_rest(to);
      }
    }
    copies_ += int(plan.copies.size());
    for (const auto& [from, to] : plan.moves) {
      ++moves_to_[size_t(kv_tier(to))];
      gaps_closed_ += kv_tier(from) == kv_tier(to);
    }
    moves_alone_ += plan.entries.empty();
  }

  int32_t* host_place(KvRef ref) { return host_memory_.data() + kv_first_unit(ref) * 4; }

  void copy_host(const StepPlan& plan) {
    for (const HostMove& move : plan.host_moves) {
      ASSERT_EQ(kv_tier(move.block), kv_tier(move.place)) << "a block keeps its tier";
      if (move.to) {
        std::copy_n(host_place(move.place), 4, place(move.block));
        empty_rest(move.block);
      } else {
        std::copy_n(place(move.block), 4, host_place(move.place));
      }
      ++(move.to ? restored_ : saved_);
    }
  }

  void work_on_files() {
    const DiskJob job = files_.jobs.front();
    files_.jobs.pop_front();
    const std::pair name(job.key, job.group);
    DiskOutcome outcome = chance(traffic_.failed_share) ? DiskOutcome::failed : DiskOutcome::done;
    if (job.kind == DiskJob::Kind::remove) {
      files_.files.erase(name);
    } else if (job.kind == DiskJob::Kind::write) {
      FakeFiles::File file{job.tier, {}};
      std::copy_n(host_place(job.place), 4, file.content.begin());
      if (outcome == DiskOutcome::done) files_.files[name] = file;
    } else {
      ASSERT_TRUE(files_.files.contains(name)) << "read though it was removed";
      if (chance(traffic_.corrupt_share)) outcome = DiskOutcome::corrupt;
      lost_ += outcome != DiskOutcome::done;
      ++read_;
      if (outcome == DiskOutcome::done)
        std::copy_n(files_.files[name].content.begin(), 4, host_place(job.place));
    }
    host_->finish(job, outcome);
  }

  // As a device would: copies, then what is computed is stored and read back through the tables. The cache
  // holds tokens, each with the group and the salt it was stored under. Copies to and from the host may be made
  // before or after.
  void execute(const Flight& flight) {
    const bool host_first = chance(0.5);
    if (host_first) copy_host(*flight.plan);
    make_moves(*flight.plan);
    compute(flight);
    if (!host_first) copy_host(*flight.plan);
  }

  void compute(const Flight& flight) {
    for (size_t i = 0; i < flight.plan->entries.size(); ++i) {
      const PlanEntry& e = flight.plan->entries[i];
      const Sequence& s = *e.sequence;
      for (int g = 0; g < layout_.groups(); ++g) {
        const auto& row = flight.tables[i * size_t(layout_.groups()) + size_t(g)];
        const auto cell = [&](int p) -> int32_t& { return place(row[size_t(p / 4)])[p % 4]; };
        const auto mark = [&](int p) {
          return (s.ids[size_t(p)] * 8 + g) * 8 + int32_t(s.request.cache_salt[1]);
        };
        const int end = std::min(e.first + e.count, int(s.ids.size()));  // beyond it: thrown away
        for (int p = e.first; p < e.first + e.count; ++p) {
          ASSERT_EQ(kv_tier(row[size_t(p / 4)]), KvTier::full) << "written to what has been converted";
          cell(p) = p < end ? mark(p) : kNothing;
          empty_rest(row[size_t(p / 4)]);
        }
        const int window = layout_.windows[size_t(g)];
        for (int p = window ? std::max(0, e.first - window + 1) : 0; p < end; ++p)
          ASSERT_EQ(cell(p), mark(p)) << "position " << p << " of a row at " << e.first << ", group " << g;
      }
    }
  }

  void disturb() {
    for (auto& s : sequences_) {
      if (s->ended()) continue;
      if (s->paused ? chance(0.1) : s->generated() > 0 && chance(traffic_.pause_share / 10))
        s->paused = !s->paused;
      if (chance(traffic_.cancel_share / 40)) {
        scheduler_->end(s.get(), FinishReason::cancelled);
        ended(s.get());
      }
    }
  }

  void ended(Sequence* s) {
    ASSERT_TRUE(s->ended());
    ++finished_;
  }

  void check_batch(const StepPlan& plan, bool busy) {
    const Batching& batching = traffic_.policy.batching;
    const auto running = scheduler_->running();
    const WaitingQueue& waiting = scheduler_->waiting();
    if (plan.flushed_by != FlushReason::none) {
      ASSERT_FALSE(busy) << "a batch began while another ran";
      ASSERT_LE(plan.batch, batching.kind == BatchingKind::serial ? 1 : batching.window.max_batch);
      members_.clear();
      members_.insert(running.begin(), running.end());
      batch_since_ = now_;
      for (const Sequence* s : waiting) {
        batch_since_ = std::min(batch_since_, s->arrived_at);
        if (s->waits_as == WaitsAs::chosen) members_.insert(s);
      }
      for (const Sequence* s : members_) batch_since_ = std::min(batch_since_, s->arrived_at);
      ASSERT_EQ(int(members_.size()), plan.batch);
      ++batches_;
    }
    if (batching.kind == BatchingKind::continuous) {
      ASSERT_EQ(plan.flushed_by, FlushReason::none);
      ASSERT_EQ(scheduler_->next_flush(), 0);
      return;
    }
    const TimeNs span = batching.window.span_ns;
    for (const Sequence* s : running) {
      ASSERT_TRUE(members_.contains(s)) << "a newcomer joined a batch";
      ASSERT_TRUE(batching.kind == BatchingKind::serial || span == 0 || s->arrived_at - batch_since_ <= span);
    }
    ASSERT_TRUE(batching.kind != BatchingKind::serial || running.size() <= 1);
    const bool gathers = running.empty() && !waiting.empty() && waiting.front()->waits_as == WaitsAs::fresh;
    ASSERT_EQ(scheduler_->next_flush() != 0, gathers);
    ASSERT_TRUE(!gathers || scheduler_->next_flush() > now_) << "it would be asked again and again";
  }

  void check_plan(const StepPlan& plan) {
    int tokens = 0;
    std::set<const Sequence*> seen;
    for (const PlanEntry& e : plan.entries) {
      const Sequence* s = e.sequence;
      ASSERT_TRUE(seen.insert(s).second) << "a sequence is twice in one step";
      ASSERT_FALSE(s->ended());
      ASSERT_GT(e.count, 0);
      ASSERT_EQ(e.first + e.count, s->planned);
      ASSERT_FALSE(s->needs_host_state && e.samples && s->samples_in_flight > 1);
      tokens += e.count;
      computed_tokens_ += e.count;
      if (s->admitted_at == now_ && s->preemptions == 0 && e.first == s->cached_tokens) {
        uint64_t& last = last_admitted_[s->lane()][s->request.tenant];
        ASSERT_GT(s->order, last) << "a later request of the same lane and tenant was admitted first";
        last = s->order;
      }
      for (int g = 0; g < layout_.groups(); ++g) {
        const int window = layout_.windows[size_t(g)];
        const int from = window ? std::max(0, e.first - window + 1) : 0;
        for (int p = from; p < s->planned; ++p)
          ASSERT_NE(s->table->row(g)[size_t(p / 4)], kNoBlock) << "position " << p << " has no block";
        for (int p = e.first; p < s->planned; ++p) {
          const BlockId b = s->table->row(g)[size_t(p / 4)];
          ASSERT_EQ(scheduler_->blocks().owners(b), 1) << "others read what is written";
          ASSERT_FALSE(scheduler_->blocks().kept(b)) << "written to though it can be found";
        }
      }
    }
    pressed_ += !scheduler_->waiting().empty();
    full_ += !scheduler_->waiting().empty() &&
             scheduler_->blocks().used() * 100 >= scheduler_->blocks().total() * 98;
    ASSERT_EQ(tokens, plan.tokens);
    ASSERT_LE(tokens, traffic_.policy.step_tokens);
    ASSERT_LE(int(scheduler_->running().size()), traffic_.policy.max_running);
    for (const auto& s : sequences_) ASSERT_LE(s->forced_preemptions, Sequence::kMostPreemptions);
  }

  void land() {
    const Flight flight = std::move(flying_.front());
    const StepPlan* plan = flight.plan.get();
    flying_.pop_front();
    execute(flight);
    scheduler_->land_moves(*plan, now_);
    if (traffic_.seed % 2) scheduler_->note_step(*plan, 4000 + 30 * plan->tokens);
    for (const PlanEntry& e : plan->entries) {
      Sequence* s = e.sequence;
      const bool was_ended = s->ended();
      const bool last = e.samples && s->generated() + 1 >= s->request.max_tokens;
      const bool prompt_done = s->request.max_tokens == 0 && e.first + e.count == s->prompt_tokens;
      const FinishReason end = last || prompt_done         ? FinishReason::length
                               : e.samples && chance(0.03) ? FinishReason::stop
                                                           : FinishReason::none;
      scheduler_->land(e, e.samples ? int32_t(s->ids.size() * s->order % 10) : -1, end, now_);
      if (!was_ended && s->ended()) ended(s);
    }
  }

  void check_blocks() {
    std::map<BlockId, int> owned;
    int held = 0;
    for (const Sequence* s : scheduler_->running()) {
      ASSERT_NE(s->table, nullptr);
      held += s->table->held();
      for (int g = 0; g < layout_.groups(); ++g)
        for (BlockId b : s->table->row(g))
          if (b != kNoBlock) ++owned[b], --held;
      for (BlockId b : s->table->sources()) ++owned[b];
    }
    ASSERT_EQ(held, 0);
    HeldTokens tokens;
    for (const Sequence* s : scheduler_->running())
      tokens.planned += s->planned, tokens.table_blocks += s->table->row_blocks();
    ASSERT_EQ(scheduler_->held_tokens().planned, tokens.planned);
    ASSERT_EQ(scheduler_->held_tokens().table_blocks, tokens.table_blocks);
    for (const auto& [b, owners] : owned) {
      ASSERT_EQ(scheduler_->blocks().owners(b), owners);
      ASSERT_TRUE(owners == 1 || scheduler_->blocks().kept(b)) << "two share what cannot be found";
    }
    std::set<int64_t> slots;
    for (const auto& [b, owners] : owned) slots.insert(kv_first_unit(scheduler_->blocks().ref(b)) / kSlotUnits);
    for (const Flight& flight : flying_)
      for (const auto& [from, to] : flight.plan->moves) slots.insert(kv_first_unit(from) / kSlotUnits);
    ASSERT_EQ(scheduler_->blocks().used(), int(slots.size()));
    ASSERT_TRUE(scheduler_->prefixes() || scheduler_->blocks().cached() == 0);
    if (scheduler_->prefixes() && now_ % 16 == 0) scheduler_->prefixes()->check();
    if (host_ && now_ % 16 == 0) host_->check();
  }

  const Traffic traffic_;
  std::mt19937 random_;
  KvLayout layout_;
  FakeFiles files_;
  std::unique_ptr<HostTier> host_;
  std::vector<int32_t> host_memory_;  // [slots, kSlotUnits, 4]
  std::unique_ptr<Scheduler> scheduler_;
  std::deque<std::unique_ptr<Sequence>> sequences_;
  std::deque<Flight> flying_;
  std::vector<int32_t> cache_;  // [slots, kSlotUnits, 4]
  int saved_ = 0, restored_ = 0, read_ = 0, lost_ = 0;
  int copies_ = 0, gaps_closed_ = 0, moves_alone_ = 0;
  int moves_to_[kKvTiers] = {};
  TimeNs now_ = 0;
  int arrived_ = 0, started_ = 0, finished_ = 0, refused_ = 0;
  int64_t computed_tokens_ = 0;
  PrefixCounts found_;  // by all plans
  uint64_t last_admitted_[kLanes][kTenants] = {};
  std::set<const Sequence*> members_;
  TimeNs batch_since_ = 0;
  int batches_ = 0, pressed_ = 0, full_ = 0;
};

}  // namespace sluice
