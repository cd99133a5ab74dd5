// Causal attention over the paged cache, on the team. Owner: the CPU backend; used by its one executor thread.
//
// Work: plan.h cuts the step into tiles (rows of one sequence that read one kv head) and, where there are few
// of them, into chunks of kChunkTokens. Whoever ends the last chunk of a tile joins its partials, always in the
// order of chunks. A row's result does not depend on the cut: see chunk_kernel.h.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "tensor/backend.h"
#include "tensor/cpu/attention/chunk_kernel.h"
#include "tensor/cpu/attention/page_layout.h"
#include "tensor/cpu/attention/plan.h"
#include "tensor/cpu/host_memory.h"
#include "tensor/cpu/team.h"

namespace sluice::cpu {

class Attention {
 public:
  Attention(Team& team, Isa isa);
  ~Attention();
  // Sizes all scratch. head_dim is the widest head, max_context the longest sequence.
  void reserve(int max_tokens, int max_heads, int head_dim, int max_context);
  // The same for geometries with sparse decode.
  void reserve_sparse(int max_sequences, int max_heads, int max_context, const KvGeometry& geometry);
  void begin_step();  // the batch changes: plans of the last step are forgotten
  void run(const AttentionArgs& a);
  void move_blocks(const MoveBlocksArgs& a);

 private:
  struct Member;
  struct CachedPlan {
    int window = -1, heads = 0, kv_heads = 0;  // what it was made for
    Plan plan;
  };
  const Plan& plan_for(const AttentionArgs& a);
  void run_item(const AttentionArgs& a, const Plan& plan, int index, Member& m);
  void run_whole(const AttentionArgs& a, const Tile& tile, const Item& item, Member& m);
  void run_split(const AttentionArgs& a, const Tile& tile, const Item& item, Member& m);
  void join(const AttentionArgs& a, const Tile& tile, Member& m);
  void run_chunk(const AttentionArgs& a, const Tile& tile, int chunk, Member& m, const TileState& out);
  void gather_rows(const AttentionArgs& a, const Tile& tile, Member& m);
  void move_strip(const MoveBlocksArgs& a, const PageLayout& layout, const KvMove& move, int strip, Member& m);
  TileState partial(const Tile& tile, int chunk);
  void bound_blocks(const AttentionArgs& a);
  void choose_blocks(const AttentionArgs& a, const Tile& tile, Member& m);
  int32_t* chosen(const AttentionArgs& a, const Tile& tile) {
    return chosen_.data() +
           (size_t(tile.sequence) * size_t(a.geometry.kv_heads) + size_t(tile.kv_head)) * chosen_stride_;
  }

  Team& team_;
  const ChunkKernels& kernels_;
  const TierKernels& tiers_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<CachedPlan> plans_;
  size_t plans_used_ = 0;
  int head_dim_ = 0;  // scratch is for heads up to this wide
  int max_tiles_ = 0;
  int64_t max_partial_rows_ = 0;
  ZeroedArray<float> partial_acc_;  // [max_partial_rows, padded D]
  ZeroedArray<float> partial_max_, partial_sum_;
  std::unique_ptr<std::atomic<int32_t>[]> chunks_left_;  // per tile
  ZeroedArray<int32_t> chosen_;  // [S, G, chosen_stride] blocks that a sparse tile reads, ascending
  size_t chosen_stride_ = 0;
  struct WholeBlock {
    int32_t sequence, block;
  };
  std::vector<WholeBlock> whole_blocks_;  // that this step made whole
};

}  // namespace sluice::cpu
