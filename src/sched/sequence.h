// One request's progress. The engine's thread owns it once it has been added to the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "kv/block_key.h"
#include "kv/block_table.h"
#include "sched/request.h"

namespace sluice {

enum class SequenceState : uint8_t {
  waiting,  // in the queue; holds nothing
  running,  // has a slot and a table
  leaving,  // will be preempted as soon as nothing of it is in flight
  ended,    // planned no more; holds its slot and blocks only while a step in flight uses them
};

struct Sequence;
struct SequenceLinks {
  Sequence* before = nullptr;
  Sequence* next = nullptr;
};

enum class WaitsAs : uint8_t { none, fresh, chosen, preempted };  // waiting_queue.h

struct Sequence {
  // Made on the client's thread, so that everything is allocated there: `ids` has room for all tokens to come.
  explicit Sequence(Request wish) : request(std::move(wish)), prompt_tokens(int(request.prompt.size())) {
    ids.reserve(request.prompt.size() + size_t(request.max_tokens));
    ids.assign(request.prompt.begin(), request.prompt.end());
    request.prompt = {};  // they live in `ids` from here on
  }

  // On the client's thread too, where blocks are kept outside the pool: names of the prompt's whole blocks, and
  // room for those to come.
  void name_blocks(int block_tokens) {
    keys.reserve(ids.capacity() / size_t(block_tokens));
    extend_keys(keys, ids, request.cache_salt, block_tokens);
  }

  Request request;
  std::vector<int32_t> ids;    // prompt, then generated
  std::vector<BlockKey> keys;  // of whole blocks, from the first on; empty: they stay in the pool
  int prompt_tokens = 0;

  // Its next step needs what the last one sampled, on the host (penalties over its history): nothing sampled
  // may then be in flight while it is planned. Set between plans.
  bool needs_host_state = false;
  TimeNs arrived_at =
      0;  // when the engine was asked for it; batching policies count from here. Set before it is added.
  // Its client reads too slowly: it is not planned, and is the first to give up its blocks. Set between plans.
  bool paused = false;
  // What its next token may be is not known yet. Set between plans.
  bool awaits_mask = false;
  // What was computed for it is no good to others: it is not kept in the prefix cache. Set between plans.
  bool spoiled = false;

  // From here on written by Scheduler alone.
  SequenceState state = SequenceState::waiting;
  FinishReason finish = FinishReason::none;
  uint64_t order = 0;           // of arrival; the older has the right of way
  int slot = -1;                // 0 .. max_running - 1 while it holds one
  BlockTable* table = nullptr;  // the slot's
  int computed = 0;             // tokens whose keys and values have landed in the cache
  int planned = 0;              // computed or in flight
  int steps_in_flight = 0;
  int samples_in_flight = 0;  // of those steps, the ones that sample a token of it
  // Until so many tokens are in its table it is not planned: their blocks come from outside the pool. 0: none
  // do.
  int restoring_tokens = 0;
  int restores_in_flight = 0;            // blocks
  bool lost_blocks = false;              // some did not come as they were written, and it began anew
  bool computes_all = false;             // what lies outside the pool is not waited for any more
  int resumed_length = 0;                // ids.size() when it was last admitted
  bool looked_up = false;                // its prompt has been, as the counts of hits have it
  int cached_tokens = 0;                 // of the prompt, found in the prefix cache then
  int host_tokens = 0, disk_tokens = 0;  // of these, those whose blocks were not in the pool
  int resumed_tokens = 0;                // found there when it was admitted again, summed
  int preemptions = 0;
  int forced_preemptions = 0;  // of these, the ones that its client had no part in
  TimeNs admitted_at = 0;      // first admission
  TimeNs preempted_at = 0;     // the last time

  // Of WaitingQueue and DeadlineHeap.
  WaitsAs waits_as = WaitsAs::none;
  SequenceLinks turn, arrival;
  int64_t charged_tokens = 0;
  int deadline_place = -1;

  // Preempted as often as a request may be: nobody makes it give way any more.
  static constexpr int kMostPreemptions = 3;
  bool is_protected() const { return forced_preemptions >= kMostPreemptions; }
  // Tokens that it may come to hold.
  int longest() const { return prompt_tokens + request.max_tokens; }

  int lane() const { return int(request.lane); }
  int generated() const { return int(ids.size()) - prompt_tokens; }
  bool ended() const { return state == SequenceState::ended; }
  // Ended, and no step in flight knows it: may be deleted.
  bool gone() const { return ended() && steps_in_flight == 0; }

  // Tokens that exist by the time the next step runs and are not yet computed or in flight. After a preemption
  // that is the prompt and everything generated: recomputing is not a case of its own.
  int wanted() const {
    if (request.max_tokens == 0) return prompt_tokens - planned;
    if (generated() + samples_in_flight >= request.max_tokens) return 0;  // its end is known already
    return int(ids.size()) + samples_in_flight - planned;
  }
  bool plannable() const {
    return state == SequenceState::running && restoring_tokens == 0 && !paused && !awaits_mask &&
           !(needs_host_state && samples_in_flight > 0);
  }
};

}  // namespace sluice
