// The products on AMX tiles. docs/architecture.md, "How the matrix product works".
#include <atomic>

#include "kernels/gemm/amx_micro-inl.h"
#include "kernels/gemm/amx_operand-inl.h"
#include "kernels/gemm/gemm_impl.h"

namespace tessera {
namespace amx {
namespace {

// A block of c, in panels.
constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 8;
constexpr int64_t kBlockBytes = kBlockRows * kBlockColumns * kMicroTileBytes;  // float32 sums
constexpr int64_t kChunkBytes = kBlockColumns * kMaxChunkSteps * kUnitBytes;   // of b
constexpr int64_t kThreadScratchBytes = kBlockBytes + 2 * kChunkBytes;

// c = or += a b, with a packed beforehand and b packed beforehand or chunk by chunk.
struct Product {
  PackedOperand a;
  PackedOperand b;  // empty: from b_matrix
  Operand b_matrix;
  DepthChunks chunks;
  Output output;
  Blocks blocks;
};

struct BlockRange {
  int64_t row_begin, row_end, column_begin, column_end;
};

BlockRange block_range(const Blocks& blocks, int64_t index) {
  const int64_t row = index % blocks.num_block_rows() * blocks.block_rows;
  const int64_t column = index / blocks.num_block_rows() * blocks.block_columns;
  return {row, std::min(row + blocks.block_rows, blocks.rows), column,
          std::min(column + blocks.block_columns, blocks.columns)};
}

}  // namespace
}  // namespace amx
}  // namespace tessera

TESSERA_AMX_BEGIN
namespace tessera {
namespace amx {
namespace {

// What one thread does: blocks one after the other, chunk by chunk. The sums of each micro-tile are moved
// while the next one is computed, and b is packed one chunk ahead, even from block to block.
class Worker {
 public:
  Worker(const Product& product, std::byte* scratch)
      : product_(product),
        block_sums_(reinterpret_cast<float*>(scratch)),
        b_chunks_{reinterpret_cast<bf16*>(scratch + kBlockBytes),
                  reinterpret_cast<bf16*>(scratch + kBlockBytes + kChunkBytes)},
        packer_(product.b_matrix) {}

  // Takes blocks with take() until it returns count() or more of them.
  template <typename Take>
  void run(int64_t block, const Take& take) {
    const int64_t count = product_.blocks.count();
    int64_t next = take();
    if (product_.b.empty()) {
      packer_.begin(part({block, 0}), part(after({block, 0}, next)), b_chunks_[0]);
      packer_.finish();
    }
    while (block < count) {
      run_block(block, next);
      block = next;
      next = block < count ? take() : count;
    }
    finish();
  }

 private:
  struct Position {
    int64_t block, chunk;
  };

  // The next chunk, given the block after this one.
  Position after(Position position, int64_t next_block) const {
    if (position.chunk + 1 < product_.chunks.count) return {position.block, position.chunk + 1};
    return {next_block, 0};
  }

  // The part of b that belongs to it; empty after the last block.
  ChunkPart part(Position position) const {
    if (position.block >= product_.blocks.count()) return {};
    const BlockRange block = block_range(product_.blocks, position.block);
    return {block.column_begin, block.column_end, product_.chunks.first(position.chunk),
            product_.chunks.steps(position.chunk)};
  }

  void run_block(int64_t index, int64_t next) {
    const BlockRange block = block_range(product_.blocks, index);
    for (int64_t chunk = 0; chunk < product_.chunks.count; ++chunk) {
      if (!product_.b.empty()) {
        run_chunk(block, chunk, product_.b.piece(chunk, block.column_begin));
        continue;
      }
      const Position following = after({index, chunk}, next);
      packer_.begin(part(following), part(after(following, product_.blocks.count())),
                    b_chunks_[1 - current_]);
      run_chunk(block, chunk, b_chunks_[current_]);
      packer_.finish();
      current_ = 1 - current_;
    }
  }

  void run_chunk(const BlockRange& block, int64_t chunk, const bf16* b) {
    const int64_t steps = product_.chunks.steps(chunk);
    const int64_t columns = block.column_end - block.column_begin;
    const int64_t all_steps = (block.row_end - block.row_begin) * columns * steps;
    const int64_t packer_steps = divide_up(packer_.num_steps(), all_steps);
    const bool first = chunk == 0, last = chunk + 1 == product_.chunks.count;
    for (int64_t row = block.row_begin; row < block.row_end; ++row) {
      const bf16* a = product_.a.piece(chunk, row);
      const auto [next_a, a_lines] = piece_after(block, chunk, row, columns * steps);
      for (int64_t column = block.column_begin; column < block.column_end; ++column) {
        const int64_t index = column - block.column_begin;
        const bf16* next_a_lines = next_a + index * steps * a_lines * kLineElements;
        drain_pending([&](auto drain) {
          const bf16* b_piece = b + index * steps * kUnitElements;
          if (product_.b.empty()) {
            micro_tile(a, b_piece, steps, place_of(pending_), drain,
                       PackingSide{next_a_lines, a_lines, &packer_, packer_steps});
          } else {
            micro_tile(a, b_piece, steps, place_of(pending_), drain,
                       PackedSide{next_a_lines, a_lines, nullptr, 0, 0});
          }
        });
        pending_.kind = last    ? Destination::Kind::kOutput
                        : first ? Destination::Kind::kBlock
                                : Destination::Kind::kAddBlock;
        pending_.block_holds_sums = !first;
        pending_.block = block_sums_ + ((row - block.row_begin) * columns + index) * kMicroTileElements;
        pending_.row = row * kPanelWidth;
        pending_.column = column * kPanelWidth;
      }
    }
  }

  struct Lines {
    const bf16* begin;
    int64_t per_step;
  };
  // The piece of a that is needed after this one, and how many of its lines to fetch per k-step.
  Lines piece_after(const BlockRange& block, int64_t chunk, int64_t row, int64_t all_steps) const {
    const bool next_chunk = row + 1 == block.row_end;
    if (next_chunk && chunk + 1 == product_.chunks.count) return {product_.a.piece(chunk, row), 0};
    const int64_t steps = product_.chunks.steps(next_chunk ? chunk + 1 : chunk);
    const bf16* piece =
        next_chunk ? product_.a.piece(chunk + 1, block.row_begin) : product_.a.piece(chunk, row + 1);
    return {piece, divide_up(steps * kUnitElements / kLineElements, all_steps)};
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
      case Destination::Kind::kAddBlock:
        return body(BlockDrain{sums_, pending_.block});
      case Destination::Kind::kOutput:
        if (product_.output.dtype == DType::kF32) {
          return body(OutputDrain<float>(product_.output, pending_, sums_));
        }
        return body(OutputDrain<bf16>(product_.output, pending_, sums_));
    }
  }

  void finish() {
    store_micro_tile(place_of(pending_));
    drain_pending([](auto drain) {
      for (int64_t i = 0; i < drain.kSteps; ++i) drain.step();
    });
  }

  alignas(64) float sums_[kMicroTileElements];  // of the previous micro-tile
  const Product& product_;
  float* block_sums_;    // [micro-tiles of a block][kMicroTileElements]
  bf16* b_chunks_[2];    // [block columns][steps][kUnitElements]
  int64_t current_ = 0;  // the one that is multiplied; the other one is being packed
  ChunkPacker packer_;
  Destination pending_;  // of the sums in the tile registers
};

void pack_all(const Operand& from, const PackedOperand& to, DepthChunks chunks, ThreadPool& pool) {
  const int64_t panels = divide_up(from.width, kPanelWidth);
  pool.parallel_for(panels * chunks.count, [&](int64_t i) {
    const int64_t panel = from.depth_is_contiguous() ? i / chunks.count : i % panels;
    const int64_t chunk = from.depth_is_contiguous() ? i % chunks.count : i / panels;
    pack_piece(from, panel, chunks.first(chunk), chunks.steps(chunk), to.piece(chunk, panel));
  });
}

void run_blocks(const Product& product, std::span<std::byte> thread_scratch, ThreadPool& pool) {
  std::atomic<int64_t> next_block = 0;
  const int64_t count = product.blocks.count();
  pool.parallel_for(std::min(pool.num_threads(), count), [&](int64_t) {
    int64_t block = next_block.fetch_add(1, std::memory_order_relaxed);
    if (block >= count) return;
    const TileScope tiles;
    Worker worker(product, thread_scratch.data() + ThreadPool::thread_index() * kThreadScratchBytes);
    worker.run(block, [&] { return next_block.fetch_add(1, std::memory_order_relaxed); });
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
using amx::Product;

int64_t packed_bytes(int64_t width, int64_t depth) {
  return PackedOperand::bytes(divide_up(width, amx::kPanelWidth), DepthChunks(depth));
}

int64_t scratch_bytes(const GemmLimits& limits) {
  if (limits.dtype == DType::kF32) return kGemmOneDnn.scratch_bytes(limits);
  return packed_bytes(limits.max_rows, limits.max_width) + packed_bytes(limits.max_width, limits.max_rows) +
         limits.num_threads * amx::kThreadScratchBytes;
}

// Cuts the packed operands and the threads' memory from scratch.
class Scratch {
 public:
  explicit Scratch(std::span<std::byte> all) : left_(all) {}
  PackedOperand packed(int64_t width, DepthChunks chunks) {
    const int64_t panels = divide_up(width, amx::kPanelWidth);
    auto* data = reinterpret_cast<bf16*>(left_.data());
    left_ = left_.subspan(static_cast<size_t>(PackedOperand::bytes(panels, chunks)));
    return {data, panels, chunks};
  }
  std::span<std::byte> threads() const { return left_; }

 private:
  std::span<std::byte> left_;
};

amx::Blocks choose_blocks(int64_t rows, int64_t columns) {
  amx::Blocks blocks = {divide_up(rows, amx::kPanelWidth), divide_up(columns, amx::kPanelWidth),
                        amx::kBlockRows, amx::kBlockColumns};
  return blocks;
}

// c [rows, columns] = or += a b: a packed by all threads, then b chunk by chunk (weights) or beforehand.
void multiply(const Operand& a, const Operand& b, bool pack_b, const amx::Output& output,
              std::span<std::byte> scratch, ThreadPool& pool) {
  const DepthChunks chunks(a.depth);
  Scratch memory(scratch);
  Product product = {
      memory.packed(a.width, chunks), {}, b, chunks, output, choose_blocks(output.rows, output.columns)};
  amx::pack_all(a, product.a, chunks, pool);
  if (pack_b) {
    product.b = memory.packed(b.width, chunks);
    amx::pack_all(b, product.b, chunks, pool);
  }
  amx::run_blocks(product, memory.threads(), pool);
}

void forward(ConstTensorView x_TK, ConstTensorView w_NK, ConstTensorView bias_N, TensorView y_TN,
             std::span<std::byte> scratch, ThreadPool& pool) {
  if (x_TK.dtype() == DType::kF32) return kGemmOneDnn.forward(x_TK, w_NK, bias_N, y_TN, scratch, pool);
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  multiply({x_TK.as<bf16>(), K, T, K, Packing::kCopy}, {w_NK.as<bf16>(), K, N, K, Packing::kPair}, false,
           {y_TN.bytes(), T, N, y_TN.dtype(), false, bias_N.empty() ? nullptr : bias_N.as<bf16>()}, scratch,
           pool);
}

void backward_input(ConstTensorView dy_TN, ConstTensorView w_NK, TensorView dx_TK, Update update,
                    std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32) {
    return kGemmOneDnn.backward_input(dy_TN, w_NK, dx_TK, update, scratch, pool);
  }
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = w_NK.dim(1);
  multiply({dy_TN.as<bf16>(), N, T, N, Packing::kCopy}, {w_NK.as<bf16>(), K, K, N, Packing::kInterleave},
           false, {dx_TK.bytes(), T, K, dx_TK.dtype(), update == Update::kAdd, nullptr}, scratch, pool);
}

void backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, Update update,
                     std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32) {
    return kGemmOneDnn.backward_weight(dy_TN, x_TK, dw_NK, update, scratch, pool);
  }
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  multiply({dy_TN.as<bf16>(), N, N, T, Packing::kTranspose}, {x_TK.as<bf16>(), K, K, T, Packing::kInterleave},
           true, {dw_NK.bytes(), N, K, DType::kF32, update == Update::kAdd, nullptr}, scratch, pool);
}

}  // namespace

const GemmKernels kGemmAmx = {scratch_bytes, forward, backward_input, backward_weight};

}  // namespace tessera
