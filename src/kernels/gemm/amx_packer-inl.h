// Packing of one chunk of an operand in small steps, between the tile products of the chunk before it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/amx_operand-inl.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {

// The pieces of panels [panel_begin, panel_end) for k-steps [step_begin, step_begin + steps): unit after unit
// along the rows of the stored matrix.
struct ChunkPart {
  int64_t panel_begin = 0, panel_end = 0;
  int64_t step_begin = 0, steps = 0;

  int64_t num_panels() const { return panel_end - panel_begin; }
  int64_t num_units() const { return num_panels() * steps; }
};

class ChunkPacker {
 public:
  // Steps of a unit.
  static constexpr int64_t kUnitSteps = 16;

  explicit ChunkPacker(const Operand& from) : from_(from) {}

  // Starts to pack `part` into `to` ([panels][steps][kUnitElements]). `following` is what will be packed
  // after it (or empty): memory is fetched kDistance units ahead.
  void begin(const ChunkPart& part, const ChunkPart& following, bf16* to) {
    part_ = part;
    following_ = following;
    to_ = to;
    unit_ = 0;
    step_ = 0;
    if (part_.num_units() > 0) begin_unit();
  }

  // Steps that are left.
  int64_t num_steps() const { return (part_.num_units() - unit_) * kUnitSteps - step_; }

  bool done() const { return unit_ >= part_.num_units(); }

  // One of the kUnitSteps steps of a unit.
  void step() {
    if (done()) return;
    _mm_prefetch(reinterpret_cast<const char*>(ahead_), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(ahead_ + ahead_stride_), _MM_HINT_T1);
    ahead_ += 2 * ahead_stride_;
    if (whole_) step_whole_unit();
    if (++step_ < kUnitSteps) return;
    step_ = 0;
    ++unit_;
    if (!done()) begin_unit();
  }

  void finish() {
    while (!done()) step();
  }

 private:
  // Units between the one that is packed and the one that is fetched: 32 KiB, so that few lines of one cache
  // set wait although rows may be a power of two apart.
  static constexpr int64_t kDistance = 16;

  struct Place {
    int64_t panel, step;
  };
  Place place(const ChunkPart& part, int64_t unit) const {
    if (from_.depth_is_contiguous())
      return {part.panel_begin + unit / part.steps, part.step_begin + unit % part.steps};
    return {part.panel_begin + unit % part.num_panels(), part.step_begin + unit / part.num_panels()};
  }

  void begin_unit() {
    const auto [panel, step] = place(part_, unit_);
    const int64_t line = panel * kPanelWidth, k = step * kTileDepth;
    unit_to_ = to_ + ((panel - part_.panel_begin) * part_.steps + step - part_.step_begin) * kUnitElements;
    unit_from_ = from_.at(line, k);
    whole_ = line + kPanelWidth <= from_.width && k + kTileDepth <= from_.depth;
    if (!whole_) pack_unit(from_, panel, step, unit_to_);
    look_ahead();
  }

  void look_ahead() {
    int64_t unit = unit_ + kDistance;
    const ChunkPart* part = &part_;
    if (unit >= part_.num_units()) {
      unit -= part_.num_units();
      part = &following_;
    }
    if (unit >= part->num_units()) {
      ahead_ = from_.data;
      ahead_stride_ = 0;
      return;
    }
    const auto [panel, step] = place(*part, unit);
    ahead_ = from_.at(panel * kPanelWidth, step * kTileDepth);
    ahead_stride_ = from_.stride;
  }

  // For kPair the first half of the steps copies rows to where they lie densely: rows a power of two apart
  // share one set of L1, which would lose them between the four passes over a tile.
  void step_whole_unit() {
    const int64_t tile = step_ / 4 % 2, part = step_ % 4;
    if (from_.packing == Packing::kPair) {
      bf16* rows = rows_ + tile * kTileElements;
      if (step_ < 8)
        return copy_tile_step(unit_from_ + tile * kTileRows * from_.stride, from_.stride, part, rows);
      return pair_tile_step(rows, kTileDepth, part, unit_to_ + tile * kTileElements);
    }
    if (step_ % 2 == 1) return;
    const int64_t half = step_ / 2 % 2;
    interleave_tile_step(unit_from_ + half * kTileColumns, from_.stride, step_ / 4,
                         unit_to_ + half * kTileElements);
  }

  alignas(64) bf16 rows_[kUnitElements];
  Operand from_;
  ChunkPart part_, following_;
  bf16* to_ = nullptr;
  int64_t unit_ = 0;
  int64_t step_ = 0;
  const bf16* unit_from_ = nullptr;
  bf16* unit_to_ = nullptr;
  bool whole_ = false;
  const bf16* ahead_ = nullptr;
  int64_t ahead_stride_ = 0;
};

}  // namespace tessera::amx
TESSERA_AMX_END
