// The products on AMX tiles. docs/architecture.md, "How the matrix product works".
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <optional>

#include "kernels/gemm/amx_few_rows.h"
#include "kernels/gemm/amx_micro-inl.h"
#include "kernels/gemm/amx_operand-inl.h"
#include "kernels/gemm/gemm_impl.h"

namespace tessera {
namespace amx {
namespace {

// The panels of a square block of c of which sums, a chunk of b and two pieces of a fill at most 7/8 of L2:
// 16 (512 x 512) for 2 MiB. Not so small that sums move more often than they are worked on.
int64_t block_panels() {
  constexpr int64_t kUsualL2Bytes = 2 << 20;  // where the system does not say
  constexpr int64_t kPieceBytes = kMaxChunkSteps * kUnitBytes;
  static const int64_t panels = [] {
    const int64_t reported = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const int64_t l2_bytes = (reported > 0 ? reported : kUsualL2Bytes) / 8 * 7;
    int64_t width = 8;
    while (width < 32 &&
           (width + 1) * ((width + 1) * kMicroTileBytes + kPieceBytes) + 2 * kPieceBytes <= l2_bytes) {
      ++width;
    }
    return width / 2 * 2;
  }();
  return panels;
}

int64_t thread_scratch_bytes() { return block_panels() * block_panels() * kMicroTileBytes; }

// c = or += a b, both packed.
struct Product {
  PackedOperand a, b;
  DepthChunks chunks;
  Output output;
  Blocks blocks;
};

struct BlockRange {
  int64_t row_begin, row_end, column_begin, column_end;
};

BlockRange block_range(const Blocks& blocks, int64_t index) {
  const int64_t row = index % blocks.block_rows, column = index / blocks.block_rows;
  return {blocks.rows * row / blocks.block_rows, blocks.rows * (row + 1) / blocks.block_rows,
          blocks.columns * column / blocks.block_columns,
          blocks.columns * (column + 1) / blocks.block_columns};
}

}  // namespace
}  // namespace amx
}  // namespace tessera

TESSERA_AMX_BEGIN
namespace tessera {
namespace amx {
namespace {

// What one thread does: blocks one after the other, chunk by chunk. The sums of each micro-tile are moved
// while the next one is computed, even from block to block.
class Worker {
 public:
  Worker(const Product& product, std::byte* scratch)
      : product_(product), block_sums_(reinterpret_cast<float*>(scratch)) {}

  // `next` is the block that this thread will probably compute after it, from count() on none.
  void run_block(int64_t index, int64_t next) {
    const BlockRange block = block_range(product_.blocks, index);
    for (int64_t chunk = 0; chunk < product_.chunks.count; ++chunk) {
      const bool last = chunk + 1 == product_.chunks.count;
      const bool none = last && next >= product_.blocks.count();
      const int64_t next_chunk = last ? 0 : chunk + 1;
      const BlockRange following = last && !none ? block_range(product_.blocks, next) : block;
      const bf16* next_b = product_.b.piece(next_chunk, following.column_begin);
      const int64_t next_b_units =
          (following.column_end - following.column_begin) * product_.chunks.steps(next_chunk);
      const bool there = none || next_b == product_.b.piece(chunk, block.column_begin);
      run_chunk(block, chunk, next_b, there ? 0 : next_b_units);
    }
  }

  void finish() {
    store_micro_tile(place_of(pending_));
    drain_pending([](auto drain) {
      for (int64_t i = 0; i < drain.kSteps; ++i) drain.step();
    });
    _mm_sfence();  // streamed results are visible to whoever waits for this thread
    if (product_.output.squares != nullptr) squares_.add_to_shared(*product_.output.squares);
  }

 private:
  void run_chunk(const BlockRange& block, int64_t chunk, const bf16* next_b, int64_t next_b_units) {
    const int64_t steps = product_.chunks.steps(chunk);
    const int64_t columns = block.column_end - block.column_begin;
    const int64_t all_steps = (block.row_end - block.row_begin) * columns * steps;
    LineStream b_lines = {next_b, divide_up(next_b_units * kUnitLines, all_steps)};
    const bf16* b = product_.b.piece(chunk, block.column_begin);
    const bool first = chunk == 0, last = chunk + 1 == product_.chunks.count;
    for (int64_t row = block.row_begin; row < block.row_end; ++row) {
      const bf16* a = product_.a.piece(chunk, row);
      LineStream a_lines = lines_after(block, chunk, row, columns * steps);
      for (int64_t column = block.column_begin; column < block.column_end; ++column) {
        const int64_t index = column - block.column_begin;
        float* const sums = block_sums_ + ((row - block.row_begin) * columns + index) * kMicroTileElements;
        const Ahead ahead = {a_lines, b_lines, first ? nullptr : sums + kMicroTileElements,
                             last ? rows_added_to(row, column) : RowStream()};
        drain_pending([&](auto drain) {
          micro_tile(a, b + index * steps * kUnitElements, steps, place_of(pending_), first ? nullptr : sums,
                     drain, ahead);
        });
        a_lines.skip(steps);
        b_lines.skip(steps);
        pending_.kind = last ? Destination::Kind::kOutput : Destination::Kind::kBlock;
        pending_.block = sums;
        pending_.row = row * kPanelWidth;
        pending_.column = column * kPanelWidth;
      }
    }
  }

  // Of this micro-tile: it is added to while the next one is computed.
  RowStream rows_added_to(int64_t row, int64_t column) const {
    const Output& output = product_.output;
    if (!output.add || output.dtype != DType::kF32) return {};
    const int64_t first_row = row * kPanelWidth;
    const int64_t at = first_row * output.stride + column * kPanelWidth;
    return {output.data + at * static_cast<int64_t>(sizeof(float)),
            output.stride * static_cast<int64_t>(sizeof(float)),
            std::min(kPanelWidth, output.rows - first_row)};
  }

  // The piece of a that is needed after this one.
  LineStream lines_after(const BlockRange& block, int64_t chunk, int64_t row, int64_t all_steps) const {
    const bool next_chunk = row + 1 == block.row_end;
    if (next_chunk && chunk + 1 == product_.chunks.count) return {product_.a.piece(chunk, row), 0};
    const bf16* piece =
        next_chunk ? product_.a.piece(chunk + 1, block.row_begin) : product_.a.piece(chunk, row + 1);
    return {piece, divide_up(product_.chunks.steps(next_chunk ? chunk + 1 : chunk) * kUnitLines, all_steps)};
  }

  float* place_of(const Destination& destination) {
    return destination.kind == Destination::Kind::kBlock ? destination.block : sums_;
  }

  // Calls body with what moves the sums of the previous micro-tile to their destination.
  template <typename Body>
  void drain_pending(const Body& body) {
    switch (pending_.kind) {
      case Destination::Kind::kNowhere:
      case Destination::Kind::kBlock:
        return body(NoDrain());
      case Destination::Kind::kOutput:
        if (product_.output.squares != nullptr) {
          return body(SquaresDrain(product_.output, pending_, sums_, &squares_));
        }
        if (product_.output.dtype == DType::kF32) {
          return body(OutputDrain<float>(product_.output, pending_, sums_));
        }
        return body(OutputDrain<bf16>(product_.output, pending_, sums_));
    }
  }

  alignas(64) float sums_[kMicroTileElements];  // of the previous micro-tile
  const Product& product_;
  float* block_sums_;    // [micro-tiles of a block][kMicroTileElements]
  Destination pending_;  // of the sums in the tile registers
  ExactSum squares_;     // of this thread's part of the result
};

// Units that one task packs: rows of the stored matrix are read in runs of at least 2 KiB, which is what
// wakes the hardware prefetchers.
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

// The rows of a that a block reads, on this thread.
void pack_rows(const Operand& from, const Product& product, int64_t block) {
  const BlockRange range = block_range(product.blocks, block);
  for (int64_t panel = range.row_begin; panel < range.row_end; ++panel) {
    for (int64_t step = 0; step < product.chunks.num_steps; ++step) {
      pack_unit(from, panel, step, product.a.unit(panel, step));
    }
  }
}

// Past the caches: whoever reads a kept form comes much later, and a cached store would read it first.
void stream_unit(const bf16* unit, bf16* to) {
  for (int64_t i = 0; i < kUnitElements; i += kLineElements) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(unit + i));
  }
}

// Both forms of a weight [N, K] in one pass over it: a unit of either comes from the same 32 x 32 elements.
// `forward` takes N as width, `backward_input` takes K; either may be empty. Of its panels of 32 rows only
// those from first_panel to end_panel.
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

// Where blocks are whole rows of c, a need not be packed yet: given as it is stored, each block packs its own
// rows, which then lie in the caches of the thread that reads them, and no thread waits for another.
void run_blocks(const Product& product, const Operand* stored_a, std::span<std::byte> thread_scratch,
                ThreadPool& pool) {
  const int64_t count = product.blocks.count();
  const int64_t num_workers = std::min(pool.num_threads(), count);
  std::atomic<int64_t> next_block = num_workers;
  pool.parallel_for(num_workers, [&](int64_t first_block) {
    const TileScope tiles;
    Worker worker(product, thread_scratch.data() + ThreadPool::thread_index() * thread_scratch_bytes());
    for (int64_t block = first_block; block < count;
         block = next_block.fetch_add(1, std::memory_order_relaxed)) {
      if (stored_a != nullptr) pack_rows(*stored_a, product, block);
      worker.run_block(block, block + num_workers);  // its next one if all are equally fast
    }
    worker.finish();
  });
}

}  // namespace
}  // namespace amx
}  // namespace tessera
TESSERA_AMX_END

namespace tessera {
namespace {

using amx::DepthChunks;
using amx::divide_up;
using amx::Operand;
using amx::PackedOperand;
using amx::Packing;

// An operand is packed in parts of about this size, all threads together, so that a part stays in L3.
constexpr int64_t kMaxPartBytes = 32 << 20;
// Tokens of one pass of backward_weight; later passes add.
constexpr int64_t kMaxTokens = 4096;

// The part of activations beside a weight in kept form: larger, because the weight is read once for each.
constexpr int64_t kMaxOnlyPartBytes = 128 << 20;

// Panels of a part.
int64_t part_panels(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  const int64_t panels = divide_up(width, amx::kPanelWidth);
  const int64_t panel_bytes = PackedOperand::bytes(1, DepthChunks(depth));
  const int64_t most = std::max(amx::block_panels(), max_bytes / panel_bytes);
  return divide_up(panels, divide_up(panels, most));
}

int64_t part_bytes(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  return PackedOperand::bytes(part_panels(width, depth, max_bytes), DepthChunks(depth));
}

int64_t num_parts(const Operand& operand) {
  return divide_up(divide_up(operand.width, amx::kPanelWidth), part_panels(operand.width, operand.depth));
}

// Of any matrix with extents up to these.
int64_t max_part_bytes(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  const int64_t all = PackedOperand::bytes(divide_up(width, amx::kPanelWidth), DepthChunks(depth));
  return std::min(all, std::max(max_bytes, PackedOperand::bytes(amx::block_panels(), DepthChunks(depth))));
}

// A tall product onto few columns reads x once for little arithmetic: oneDNN packs nothing and is 1.1 to 1.5
// times as fast (docs/performance.md).
constexpr int64_t kFewColumns = 128;
constexpr int64_t kManyRows = 1024;
constexpr std::string_view kLeftToOneDnn = "y of up to 128 columns and more than 1024 rows is onednn's";

// Products of the rows of a weight take them from its packed form: the rows are whole panels of the forward
// one, whole chunks of the other.
bool takes_forward_form(const LinearShape& weight) {
  return weight.packed_rows > 0 && weight.first_row % amx::kPanelWidth == 0;
}
bool takes_backward_form(const LinearShape& weight) {
  const int64_t chunk_rows = DepthChunks(weight.packed_rows).chunk_steps * amx::kTileDepth;
  const int64_t end = weight.first_row + weight.N;
  return weight.packed_rows > 0 && weight.first_row % chunk_rows == 0 &&
         (end % chunk_rows == 0 || end == weight.packed_rows);
}

// The operands of one product, packed: of activations up to max_rows rows, of a weight all there are.
int64_t operand_bytes(GemmProduct product, const GemmLimits& limits) {
  const int64_t tokens = limits.max_rows, N = limits.weight.N, K = limits.weight.K;
  switch (product) {
    case GemmProduct::kForward:
      if (tokens <= amx::kFewRows) return 0;
      if (takes_forward_form(limits.weight)) return max_part_bytes(tokens, K, kMaxOnlyPartBytes);
      return max_part_bytes(tokens, K) + part_bytes(N, K);
    case GemmProduct::kBackwardInput:
      if (takes_backward_form(limits.weight)) return max_part_bytes(tokens, N, kMaxOnlyPartBytes);
      return max_part_bytes(tokens, N) + part_bytes(K, N);
    case GemmProduct::kBackwardWeight:
      const int64_t depth = std::min(tokens, kMaxTokens);
      return max_part_bytes(N, depth) + max_part_bytes(K, depth);
  }
  TESSERA_CHECK(false, "product {}", static_cast<int>(product));
  return 0;
}

int64_t scratch_bytes(GemmProduct product, const GemmLimits& limits) {
  if (limits.dtype == DType::kF32) return kGemmOneDnn.scratch_bytes(product, limits);
  const int64_t own = operand_bytes(product, limits) + limits.num_threads * amx::thread_scratch_bytes();
  const bool few_columns = product == GemmProduct::kForward && limits.weight.N <= kFewColumns;
  return few_columns && limits.max_rows > kManyRows
             ? std::max(own, kGemmOneDnn.scratch_bytes(product, limits))
             : own;
}

// Blocks of at most block_panels() squared, as many as keep all threads busy to the end. The longer side is
// cut for that: a thread then takes more from its own caches, less from what another thread packed.
amx::Blocks choose_blocks(int64_t rows, int64_t columns, int64_t num_threads) {
  const int64_t row_panels = divide_up(rows, amx::kPanelWidth),
                column_panels = divide_up(columns, amx::kPanelWidth);
  int64_t row_blocks = divide_up(row_panels, amx::block_panels());
  int64_t column_blocks = divide_up(column_panels, amx::block_panels());
  const auto cut = [&](int64_t& blocks, int64_t panels, int64_t others) {
    const int64_t wave = num_threads / std::gcd(num_threads, others);
    blocks = std::min(panels, divide_up(blocks, wave) * wave);
  };
  if (row_panels >= column_panels) {
    cut(row_blocks, row_panels, column_blocks);
  } else {
    cut(column_blocks, column_panels, row_blocks);
  }
  return {row_panels, column_panels, row_blocks, column_blocks};
}

// Packs part after part of an operand into `to` and calls body(pieces, first line, lines).
template <typename Body>
void for_each_part(const Operand& operand, DepthChunks chunks, int64_t max_bytes, std::byte* to,
                   ThreadPool& pool, const Body& body) {
  const int64_t most = part_panels(operand.width, operand.depth, max_bytes) * amx::kPanelWidth;
  for (int64_t line = 0; line < operand.width; line += most) {
    const Operand part = operand.lines(line, std::min(operand.width, line + most));
    const PackedOperand pieces(reinterpret_cast<bf16*>(to), divide_up(part.width, amx::kPanelWidth), chunks);
    amx::pack_all(part, pieces, pool);
    body(pieces, line, part.width);
  }
}

void multiply_parts(const PackedOperand& a, const PackedOperand& b, DepthChunks chunks,
                    const amx::Output& output, std::span<std::byte> thread_scratch, ThreadPool& pool) {
  amx::run_blocks({a, b, chunks, output, choose_blocks(output.rows, output.columns, pool.num_threads())},
                  nullptr, thread_scratch, pool);
}

// c = or += a b, part by part of a, with b packed already.
void multiply(const Operand& a, const PackedOperand& b, const amx::Output& output,
              std::span<std::byte> scratch, ThreadPool& pool) {
  const auto threads = scratch.subspan(static_cast<size_t>(part_bytes(a.width, a.depth, kMaxOnlyPartBytes)));
  const amx::Blocks blocks = choose_blocks(output.rows, output.columns, pool.num_threads());
  if (blocks.block_columns == 1 && part_panels(a.width, a.depth, kMaxOnlyPartBytes) >= blocks.rows) {
    const PackedOperand all_a(reinterpret_cast<bf16*>(scratch.data()), blocks.rows, b.chunks());
    return amx::run_blocks({all_a, b, b.chunks(), output, blocks}, &a, threads, pool);
  }
  for_each_part(a, b.chunks(), kMaxOnlyPartBytes, scratch.data(), pool,
                [&](const PackedOperand& a_part, int64_t row, int64_t rows) {
                  multiply_parts(a_part, b, b.chunks(), output.part(row, rows, 0, output.columns), threads,
                                 pool);
                });
}

PackedOperand packed_form(int64_t width, int64_t depth, std::byte* form) {
  return {reinterpret_cast<bf16*>(form), divide_up(width, amx::kPanelWidth), DepthChunks(depth)};
}

// c = or += a b, part by part of both. The inner operand is packed again for every part of the outer one, so
// that is the one with fewer parts.
void multiply(const Operand& a, const Operand& b, const amx::Output& output, std::span<std::byte> scratch,
              ThreadPool& pool) {
  const DepthChunks chunks(a.depth);
  std::byte* const a_packed = scratch.data();
  std::byte* const b_packed = a_packed + part_bytes(a.width, a.depth);
  const auto threads =
      scratch.subspan(static_cast<size_t>(part_bytes(a.width, a.depth) + part_bytes(b.width, b.depth)));
  if (num_parts(a) == 1 && num_parts(b) == 1) {
    const PackedOperand all_a = packed_form(a.width, a.depth, a_packed);
    const PackedOperand all_b = packed_form(b.width, b.depth, b_packed);
    amx::pack_both(a, all_a, b, all_b, pool);
    return multiply_parts(all_a, all_b, chunks, output, threads, pool);
  }
  const auto for_each_a = [&](const auto& body) {
    for_each_part(a, chunks, kMaxPartBytes, a_packed, pool, body);
  };
  const auto for_each_b = [&](const auto& body) {
    for_each_part(b, chunks, kMaxPartBytes, b_packed, pool, body);
  };
  const auto product = [&](const PackedOperand& a_part, int64_t row, int64_t rows,
                           const PackedOperand& b_part, int64_t column, int64_t columns) {
    multiply_parts(a_part, b_part, chunks, output.part(row, rows, column, columns), threads, pool);
  };
  if (num_parts(a) <= num_parts(b)) {
    for_each_a([&](const PackedOperand& a_part, int64_t row, int64_t rows) {
      for_each_b([&](const PackedOperand& b_part, int64_t column, int64_t columns) {
        product(a_part, row, rows, b_part, column, columns);
      });
    });
  } else {
    for_each_b([&](const PackedOperand& b_part, int64_t column, int64_t columns) {
      for_each_a([&](const PackedOperand& a_part, int64_t row, int64_t rows) {
        product(a_part, row, rows, b_part, column, columns);
      });
    });
  }
}

amx::Output output_of(TensorView c, bool add, const bf16* bias) {
  return {c.bytes(), c.dim(0), c.dim(1), c.dim(1), c.dtype(), add, bias};
}

Operand forward_operand(ConstTensorView w_NK) {
  const int64_t N = w_NK.dim(0), K = w_NK.dim(1);
  return {w_NK.as<bf16>(), K, N, K, Packing::kPair};
}
Operand backward_input_operand(ConstTensorView w_NK) {
  const int64_t N = w_NK.dim(0), K = w_NK.dim(1);
  return {w_NK.as<bf16>(), K, K, N, Packing::kInterleave};
}

int64_t packed_bytes(int64_t N, int64_t K, DType dtype) {
  if (dtype == DType::kF32) return 0;
  return PackedOperand::bytes(divide_up(N, amx::kPanelWidth), DepthChunks(K));
}

static_assert(kPackedRows == amx::kPanelWidth && kPackedRows == amx::kTileDepth);

void pack(ConstTensorView w_NK, const PackedForms& to, RowRange rows, ThreadPool& pool) {
  const int64_t N = w_NK.dim(0), K = w_NK.dim(1);
  std::optional<PackedOperand> forward_form, backward_form;
  if (to.forward != nullptr) forward_form = packed_form(N, K, to.forward);
  if (to.backward_input != nullptr) backward_form = packed_form(K, N, to.backward_input);
  amx::pack_forms(forward_operand(w_NK), backward_input_operand(w_NK), forward_form, backward_form,
                  rows.begin / kPackedRows, divide_up(rows.end, kPackedRows), pool);
}

// The kept form of w_NK for a product, where w_NK is made of whole panels (or chunks) of it.
std::optional<PackedOperand> kept_forward_form(const LinearWeight& weight) {
  if (!takes_forward_form(shape_of(weight, weight.packed.forward))) return std::nullopt;
  return packed_form(weight.packed_rows, weight.w_NK.dim(1), weight.packed.forward)
      .panels_from(weight.first_row / amx::kPanelWidth);
}
std::optional<PackedOperand> kept_backward_form(const LinearWeight& weight) {
  if (!takes_backward_form(shape_of(weight, weight.packed.backward_input))) return std::nullopt;
  const PackedOperand form =
      packed_form(weight.w_NK.dim(1), weight.packed_rows, weight.packed.backward_input);
  return form.chunks_from(weight.first_row / (form.chunks().chunk_steps * amx::kTileDepth),
                          divide_up(weight.w_NK.dim(0), amx::kTileDepth));
}

void forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
             std::span<std::byte> scratch, ThreadPool& pool) {
  if (x_TK.dtype() == DType::kF32) return kGemmOneDnn.forward(x_TK, weight, bias_N, y_TN, scratch, pool);
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1);
  if (T <= amx::kFewRows) return amx::few_rows_forward(x_TK, w_NK, bias_N, y_TN, pool);
  if (w_NK.dim(0) <= kFewColumns && T > kManyRows) {
    return kGemmOneDnn.forward(x_TK, weight, bias_N, y_TN, scratch, pool);
  }
  const Operand x = {x_TK.as<bf16>(), K, T, K, Packing::kCopy};
  const amx::Output y = output_of(y_TN, false, bias_N.empty() ? nullptr : bias_N.as<bf16>());
  if (const auto form = kept_forward_form(weight)) return multiply(x, *form, y, scratch, pool);
  multiply(x, forward_operand(w_NK), y, scratch, pool);
}

void backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                    std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32) {
    return kGemmOneDnn.backward_input(dy_TN, weight, dx_TK, update, scratch, pool);
  }
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1);
  const Operand dy = {dy_TN.as<bf16>(), N, T, N, Packing::kCopy};
  const amx::Output dx = output_of(dx_TK, update == Update::kAdd, nullptr);
  if (const auto form = kept_backward_form(weight)) return multiply(dy, *form, dx, scratch, pool);
  multiply(dy, backward_input_operand(w_NK), dx, scratch, pool);
}

// Multiply-adds up to which a weight gradient is faster on one thread than on two: about 10 us, most of which
// would be waiting for the other.
constexpr int64_t kMaxAlone = int64_t{24} << 20;

void backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                     std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32) {
    return kGemmOneDnn.backward_weight(dy_TN, x_TK, dw_NK, update, scratch, pool);
  }
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  ExactSum squares;
  for (int64_t begin = 0; begin < T; begin += kMaxTokens) {
    const int64_t tokens = std::min(kMaxTokens, T - begin);
    amx::Output dw = output_of(dw_NK, update.mode == Update::kAdd || begin > 0, nullptr);
    if (update.squares != nullptr && begin + tokens == T) dw.squares = &squares;
    const auto product = [&] {
      multiply({dy_TN.as<bf16>() + begin * N, N, N, tokens, Packing::kTranspose},
               {x_TK.as<bf16>() + begin * K, K, K, tokens, Packing::kInterleave}, dw, scratch, pool);
    };
    if (N * K * tokens <= kMaxAlone) {
      ThreadPool::run_alone(product);
    } else {
      product();
    }
  }
  if (update.squares != nullptr) *update.squares += squares.value();
}

}  // namespace

const GemmKernels kGemmAmx = {scratch_bytes, forward, backward_input,        backward_weight, "onednn",
                              packed_bytes,  pack,    /*sums_squares=*/true, kLeftToOneDnn};

}  // namespace tessera
