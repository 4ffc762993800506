// Packs operands of products on AMX tiles. Part of gemm_amx.cc.
#pragma once

#include <optional>

#include "kernels/gemm/amx_operand-inl.h"
#include "kernels/gemm/amx_worker-inl.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {  // the compiler inlines what only one place calls

// Units packed per task: rows of the stored matrix are read in runs of at least 2 KiB, which triggers the
// hardware prefetchers.
constexpr int64_t kTaskUnits = 64;

// The packing of an operand, cut into tasks.
class PackTasks {
 public:
  PackTasks(const Operand& from, const PackedOperand& to) : from_(from), to_(to) {
    const int64_t panels = divide_up(from.width, kPanelWidth), steps = to.chunks().num_steps;
    along_ = from.depth_is_contiguous() ? steps : panels;  // units along stored rows
    across_ = from.depth_is_contiguous() ? panels : steps;
    runs_ = divide_up(along_, kTaskUnits);
  }

  int64_t count() const { return across_ * runs_; }
  void run(int64_t task) const {
    const int64_t fixed = task / runs_, run = task % runs_;
    for (int64_t i = along_ * run / runs_; i < along_ * (run + 1) / runs_; ++i) {
      const int64_t panel = from_.depth_is_contiguous() ? fixed : i;
      const int64_t step = from_.depth_is_contiguous() ? i : fixed;
      pack_unit(from_, panel, step, to_.unit(panel, step));
    }
  }

 private:
  const Operand& from_;
  const PackedOperand& to_;
  int64_t along_, across_, runs_;
};

void pack_all(const Operand& from, const PackedOperand& to, ThreadPool& pool) {
  const PackTasks tasks(from, to);
  pool.parallel_for(tasks.count(), [&](int64_t task) { tasks.run(task); });
}

void pack_both(const Operand& a, const PackedOperand& to_a, const Operand& b, const PackedOperand& to_b,
               ThreadPool& pool) {
  const PackTasks tasks_a(a, to_a), tasks_b(b, to_b);
  pool.parallel_for(tasks_a.count() + tasks_b.count(), [&](int64_t task) {
    task < tasks_a.count() ? tasks_a.run(task) : tasks_b.run(task - tasks_a.count());
  });
}

// Packs the rows of a that a block reads, on this thread.
void pack_rows(const Operand& from, const Product& product, int64_t block) {
  const BlockRange range = block_range(product.blocks, block);
  for (int64_t panel = range.row_begin; panel < range.row_end; ++panel) {
    for (int64_t step = 0; step < product.chunks.num_steps; ++step) {
      pack_unit(from, panel, step, product.a.unit(panel, step));
    }
  }
}

// Packs all panels, following the stored rows if they run across the contraction.
void pack_chunk(const Operand& from, int64_t chunk, const PackedOperand& to) {
  const int64_t begin = to.chunks().first(chunk), end = begin + to.chunks().steps(chunk);
  for (int64_t step = begin; step < end; ++step) {
    for (int64_t panel = 0; panel < divide_up(from.width, kPanelWidth); ++panel) {
      pack_unit(from, panel, step, to.unit(panel, step));
    }
  }
}

// Stores past the caches: a kept form is read much later, and a cached store would first read the line it
// replaces.
void stream_unit(const bf16* unit, bf16* to) {
  for (int64_t i = 0; i < kUnitElements; i += kLineElements) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(unit + i));
  }
}

// Makes both forms of a weight [N, K] in one pass over it: a unit of either form comes from the same 32 x 32
// elements. `forward` takes N as width, `backward_input` takes K; either may be empty. Packs only panels
// [first_panel, end_panel) of 32 rows each.
void pack_forms(const Operand& forward_from, const Operand& backward_from,
                const std::optional<PackedOperand>& forward,
                const std::optional<PackedOperand>& backward_input, int64_t first_panel, int64_t end_panel,
                ThreadPool& pool) {
  const int64_t columns = divide_up(forward_from.depth, kTileDepth);
  const int64_t runs = divide_up(columns, kTaskUnits);
  pool.parallel_for((end_panel - first_panel) * runs, [&](int64_t task) {
    const int64_t row = first_panel + task / runs, run = task % runs;
    alignas(64) bf16 unit[kUnitElements];
    for (int64_t column = columns * run / runs; column < columns * (run + 1) / runs; ++column) {
      if (forward) {
        pack_unit(forward_from, row, column, unit);
        stream_unit(unit, forward->unit(row, column));
      }
      if (backward_input) {
        pack_unit(backward_from, column, row, unit);
        stream_unit(unit, backward_input->unit(column, row));
      }
    }
    _mm_sfence();
  });
}

}  // namespace
}  // namespace tessera::amx
TESSERA_AMX_END
