// The products on AMX tiles. See docs/architecture.md, "How the matrix product works".
#include <atomic>
#include <optional>
#include <variant>

#include "kernels/gemm/amx_few_rows.h"
#include "kernels/gemm/amx_packing-inl.h"
#include "kernels/gemm/amx_worker-inl.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/onednn_products.h"

TESSERA_AMX_BEGIN
namespace tessera {
namespace amx {
namespace {

// If blocks are whole rows of c, a need not be packed beforehand: given a as stored, each block packs its own
// rows, which are then in the caches of the thread that reads them, and no thread waits for another.
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
      worker.run_block(block, block + num_workers, [](int64_t) {});  // its next one at equal thread speeds
    }
    worker.finish();
  });
}

// Units, at some 55 ns each, that a thread may pack although another thread packs them too: up to this many
// cost less than waiting for the other thread and reading what it packed.
constexpr int64_t kMaxUnitsTwice = 256;

// The second operand of a small product: as it is stored, or packed already.
using SmallOperand = std::variant<Operand, PackedOperand>;

// Whether run_blocks_apart() is faster than packing together first: a block's part of a chunk and its sums
// fit in a thread's scratch, which is half of L2, or in its share of it, and little is packed by several
// threads.
bool fits_apart(const Blocks& blocks, DepthChunks chunks, bool b_is_packed, int64_t threads_per_core) {
  const int64_t rows = divide_up(blocks.rows, blocks.block_rows);
  const int64_t columns = divide_up(blocks.columns, blocks.block_columns);
  const int64_t sums_bytes = chunks.count > 1 ? rows * columns * kMicroTileBytes : 0;
  const int64_t packed = b_is_packed ? rows : rows + columns;
  const int64_t share = divide_up(b_is_packed ? blocks.rows : blocks.rows + blocks.columns, blocks.count());
  return PackedOperand::chunk_bytes(packed, chunks) + sums_bytes <=
             thread_scratch_bytes() / threads_per_core &&
         (packed - share) * chunks.num_steps <= kMaxUnitsTwice;
}

// One loop for packing and computing: each block packs what it reads for itself, chunk by chunk, so that no
// thread waits for another or reads what another packed.
void run_blocks_apart(const Operand& a, const SmallOperand& b, const Output& output, const Blocks& blocks,
                      std::span<std::byte> thread_scratch, ThreadPool& pool) {
  const Operand* const stored_b = std::get_if<Operand>(&b);
  const DepthChunks chunks = stored_b != nullptr ? DepthChunks(a.depth) : std::get<PackedOperand>(b).chunks();
  pool.parallel_for(blocks.count(), [&](int64_t index) {
    const BlockRange range = block_range(blocks, index);
    const int64_t row_panels = range.row_end - range.row_begin;
    const int64_t column_panels = range.column_end - range.column_begin;
    const int64_t row = range.row_begin * kPanelWidth, column = range.column_begin * kPanelWidth;
    const int64_t rows = std::min(row_panels * kPanelWidth, output.rows - row);
    const int64_t columns = std::min(column_panels * kPanelWidth, output.columns - column);
    std::byte* free = thread_scratch.data() + ThreadPool::thread_index() * thread_scratch_bytes();
    const auto one_chunk = [&](int64_t panels) {
      bf16* const data = reinterpret_cast<bf16*>(free);
      free += PackedOperand::chunk_bytes(panels, chunks);
      return PackedOperand::of_one_chunk(data, panels, chunks);
    };
    const PackedOperand a_packed = one_chunk(row_panels);
    const PackedOperand b_packed = stored_b != nullptr
                                       ? one_chunk(column_panels)
                                       : std::get<PackedOperand>(b).panels_from(range.column_begin);
    const Product product = {a_packed,
                             b_packed,
                             chunks,
                             output.part(row, rows, column, columns),
                             {row_panels, column_panels, 1, 1}};
    const TileScope tiles;
    Worker worker(product, free);
    worker.run_block(0, product.blocks.count(), [&](int64_t chunk) {
      pack_chunk(a.lines(row, row + rows), chunk, a_packed);
      if (stored_b != nullptr) pack_chunk(stored_b->lines(column, column + columns), chunk, b_packed);
    });
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
using amx::Operand;
using amx::PackedOperand;
using amx::Packing;
using amx::Threads;

// All threads together pack an operand in parts of about this size, so that a part stays in L3.
constexpr int64_t kMaxPartBytes = 32 << 20;
// Tokens per pass of backward_weight; later passes add.
constexpr int64_t kMaxTokens = 4096;

// Size of a part of the activations if the weight has a kept form: larger, because the weight is read once
// per part.
constexpr int64_t kMaxOnlyPartBytes = 128 << 20;

int64_t largest_block_panels() { return amx::block_panels(amx::l2_bytes(), /*threads_per_core=*/1); }

// Panels per part.
int64_t part_panels(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  const int64_t panels = divide_up(width, amx::kPanelWidth);
  const int64_t panel_bytes = PackedOperand::bytes(1, DepthChunks(depth));
  const int64_t most = std::max(largest_block_panels(), max_bytes / panel_bytes);
  return divide_up(panels, divide_up(panels, most));
}

int64_t part_bytes(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  return PackedOperand::bytes(part_panels(width, depth, max_bytes), DepthChunks(depth));
}

int64_t num_parts(const Operand& operand) {
  return divide_up(divide_up(operand.width, amx::kPanelWidth), part_panels(operand.width, operand.depth));
}

// The most for any matrix with extents up to these.
int64_t max_part_bytes(int64_t width, int64_t depth, int64_t max_bytes = kMaxPartBytes) {
  const int64_t all = PackedOperand::bytes(divide_up(width, amx::kPanelWidth), DepthChunks(depth));
  return std::min(all, std::max(max_bytes, PackedOperand::bytes(largest_block_panels(), DepthChunks(depth))));
}

// A tall product with few columns reads much for little arithmetic: oneDNN packs nothing and, using tiles, is
// 1.1 to 1.7 times as fast (docs/performance.md).
constexpr int64_t kMaxFewColumns = 128;
constexpr int64_t kMinTallRows = 1024;
constexpr int64_t kMinRowsPerColumn = 16;

std::string_view left_to_onednn() {
  return onednn_isa() == Isa::kAmxBf16
             ? "y and dx of up to 128 columns and 1024 rows or more, 16 per column, are onednn's"
             : "";
}

bool is_left_to_onednn(int64_t rows, int64_t columns) {
  return rows >= std::max(kMinTallRows, columns * kMinRowsPerColumn) && columns <= kMaxFewColumns &&
         onednn_isa() == Isa::kAmxBf16;
}

// Whether a product with a range of a weight's rows can use a packed form: the rows must be whole panels of
// the forward form, whole chunks of the other.
bool takes_forward_form(const LinearShape& weight) {
  return weight.packed_rows > 0 && weight.first_row % amx::kPanelWidth == 0;
}
bool takes_backward_form(const LinearShape& weight) {
  const int64_t chunk_rows = DepthChunks(weight.packed_rows).chunk_steps * amx::kTileDepth;
  const int64_t end = weight.first_row + weight.N;
  return weight.packed_rows > 0 && weight.first_row % chunk_rows == 0 &&
         (end % chunk_rows == 0 || end == weight.packed_rows);
}

// Bytes of the packed operands of one product: activations up to max_rows rows, all rows of a weight.
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
  const int64_t columns = product == GemmProduct::kForward ? limits.weight.N : limits.weight.K;
  const bool others = product != GemmProduct::kBackwardWeight && is_left_to_onednn(limits.max_rows, columns);
  return others ? std::max(own, kGemmOneDnn.scratch_bytes(product, limits)) : own;
}

// Multiply-adds up to which a product finishes before another thread has even started.
constexpr int64_t kMaxAlone = int64_t{1} << 18;

Threads threads_for(const amx::Output& output, int64_t depth, const ThreadPool& pool) {
  if (output.rows * output.columns * depth <= kMaxAlone) return {1, 1};
  return {pool.num_threads(), pool.threads_per_core()};
}

// Blocks for run_blocks_apart(), one per thread: the longer side is cut, which duplicates the least packing.
// If c is added to, whole rows come from memory faster.
std::optional<amx::Blocks> choose_blocks_apart(const amx::Output& output, DepthChunks chunks, Threads threads,
                                               bool b_is_packed) {
  const int64_t rows = divide_up(output.rows, amx::kPanelWidth),
                columns = divide_up(output.columns, amx::kPanelWidth);
  const amx::Blocks by_rows = {rows, columns, std::min(rows, threads.count), 1};
  const amx::Blocks by_columns = {rows, columns, 1, std::min(columns, threads.count)};
  const auto fits = [&](const amx::Blocks& blocks) {
    return amx::fits_apart(blocks, chunks, b_is_packed, threads.per_core);
  };
  const bool whole_rows = output.add && rows >= threads.count;
  if (whole_rows && fits(by_rows)) return by_rows;
  const amx::Blocks& by_longer = rows >= columns ? by_rows : by_columns;
  if (fits(by_longer)) return by_longer;
  return std::nullopt;
}

// Packs an operand into `to` part by part and calls body(pieces, first line, lines).
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
  const Threads threads = {pool.num_threads(), pool.threads_per_core()};
  amx::run_blocks(
      {a, b, chunks, output, choose_blocks(output.rows, output.columns, amx::l2_bytes(), threads)}, nullptr,
      thread_scratch, pool);
}

// c = or += a b, part by part of a, with b packed already.
void multiply(const Operand& a, const PackedOperand& b, const amx::Output& output,
              std::span<std::byte> scratch, ThreadPool& pool) {
  const auto thread_scratch =
      scratch.subspan(static_cast<size_t>(part_bytes(a.width, a.depth, kMaxOnlyPartBytes)));
  const Threads threads = threads_for(output, a.depth, pool);
  const amx::Blocks blocks = choose_blocks(output.rows, output.columns, amx::l2_bytes(), threads);
  if (blocks.block_columns == 1 && part_panels(a.width, a.depth, kMaxOnlyPartBytes) >= blocks.rows) {
    const PackedOperand all_a(reinterpret_cast<bf16*>(scratch.data()), blocks.rows, b.chunks());
    return amx::run_blocks({all_a, b, b.chunks(), output, blocks}, &a, thread_scratch, pool);
  }
  if (const auto apart = choose_blocks_apart(output, b.chunks(), threads, /*b_is_packed=*/true)) {
    return amx::run_blocks_apart(a, b, output, *apart, scratch, pool);
  }
  for_each_part(a, b.chunks(), kMaxOnlyPartBytes, scratch.data(), pool,
                [&](const PackedOperand& a_part, int64_t row, int64_t rows) {
                  multiply_parts(a_part, b, b.chunks(), output.part(row, rows, 0, output.columns),
                                 thread_scratch, pool);
                });
}

PackedOperand packed_form(int64_t width, int64_t depth, std::byte* form) {
  return {reinterpret_cast<bf16*>(form), divide_up(width, amx::kPanelWidth), DepthChunks(depth)};
}

// c = or += a b, part by part of both. The inner operand is repacked for every part of the outer one, so the
// operand with fewer parts is outermost.
void multiply(const Operand& a, const Operand& b, const amx::Output& output, std::span<std::byte> scratch,
              ThreadPool& pool) {
  const DepthChunks chunks(a.depth);
  const Threads threads = threads_for(output, a.depth, pool);
  if (const auto apart = choose_blocks_apart(output, chunks, threads, /*b_is_packed=*/false)) {
    return amx::run_blocks_apart(a, b, output, *apart, scratch, pool);
  }
  std::byte* const a_packed = scratch.data();
  std::byte* const b_packed = a_packed + part_bytes(a.width, a.depth);
  const auto thread_scratch =
      scratch.subspan(static_cast<size_t>(part_bytes(a.width, a.depth) + part_bytes(b.width, b.depth)));
  if (num_parts(a) == 1 && num_parts(b) == 1) {
    const PackedOperand all_a = packed_form(a.width, a.depth, a_packed);
    const PackedOperand all_b = packed_form(b.width, b.depth, b_packed);
    amx::pack_both(a, all_a, b, all_b, pool);
    return multiply_parts(all_a, all_b, chunks, output, thread_scratch, pool);
  }
  const auto for_each_a = [&](const auto& body) {
    for_each_part(a, chunks, kMaxPartBytes, a_packed, pool, body);
  };
  const auto for_each_b = [&](const auto& body) {
    for_each_part(b, chunks, kMaxPartBytes, b_packed, pool, body);
  };
  const auto product = [&](const PackedOperand& a_part, int64_t row, int64_t rows,
                           const PackedOperand& b_part, int64_t column, int64_t columns) {
    multiply_parts(a_part, b_part, chunks, output.part(row, rows, column, columns), thread_scratch, pool);
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
  const int64_t bytes = PackedOperand::bytes(divide_up(N, amx::kPanelWidth), DepthChunks(K));
  TESSERA_CHECK(bytes == packed_weight_bytes_of_amx(N, K, dtype), "{} bytes of a packed [{}, {}]", bytes, N,
                K);
  return bytes;
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

// The kept form of w_NK for a product if w_NK consists of whole panels (or chunks) of it.
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
  if (is_left_to_onednn(T, w_NK.dim(0))) {
    return kGemmOneDnn.forward(x_TK, weight, bias_N, y_TN, scratch, pool);
  }
  const Operand x = {x_TK.as<bf16>(), K, T, K, Packing::kCopy};
  const amx::Output y = output_of(y_TN, false, bias_N.empty() ? nullptr : bias_N.as<bf16>());
  if (const auto form = kept_forward_form(weight)) return multiply(x, *form, y, scratch, pool);
  multiply(x, forward_operand(w_NK), y, scratch, pool);
}

void backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                    std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32 || is_left_to_onednn(dx_TK.dim(0), dx_TK.dim(1))) {
    return kGemmOneDnn.backward_input(dy_TN, weight, dx_TK, update, scratch, pool);
  }
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1);
  const Operand dy = {dy_TN.as<bf16>(), N, T, N, Packing::kCopy};
  const amx::Output dx = output_of(dx_TK, update == Update::kAdd, nullptr);
  if (const auto form = kept_backward_form(weight)) return multiply(dy, *form, dx, scratch, pool);
  multiply(dy, backward_input_operand(w_NK), dx, scratch, pool);
}

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
    const Operand dy = {dy_TN.as<bf16>() + begin * N, N, N, tokens, Packing::kTranspose};
    const Operand x = {x_TK.as<bf16>() + begin * K, K, K, tokens, Packing::kInterleave};
    multiply(dy, x, dw, scratch, pool);
  }
  if (update.squares != nullptr) *update.squares += squares.value();
}

}  // namespace

const GemmKernels kGemmAmx = {scratch_bytes, forward, backward_input,        backward_weight, "onednn",
                              packed_bytes,  pack,    /*sums_squares=*/true, left_to_onednn};

}  // namespace tessera
