#include "kernels/amx/tile_feed.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/float_types.h"
#include "base/rng.h"
#include "kernels/amx/tiles.h"
#include "platform/cpu.h"

namespace tessera {
namespace {

constexpr int64_t kUnitBytes = 2 * amx::kTileBytes;       // of a panel, per k-step
constexpr int64_t kMicroTileBytes = 4 * amx::kTileBytes;  // of sums
constexpr int64_t kMaxSteps = 64;
constexpr int64_t kAllSumsBytes = int64_t{1} << 20;
// Far larger than L2 but well within L3; far larger than any L3 share.
constexpr int64_t kL3Bytes = int64_t{16} << 20;
constexpr int64_t kMemoryBytes = int64_t{256} << 20;
constexpr double kOperationsPerStep = 2.0 * 32 * 32 * 32;

// Panels that are used together, and where they come from.
struct Plan {
  int64_t steps;               // of a panel
  int64_t a_panels, b_panels;  // of a block
  int64_t a_bytes, b_bytes;    // walked before the first is used again
  int64_t repeats = 1;         // blocks between clock reads
};

Plan plan_of(TileFeed feed) {
  const auto resident = [](int64_t steps, int64_t a_panels, int64_t b_panels) {
    return Plan{steps,
                a_panels,
                b_panels,
                a_panels * steps * kUnitBytes,
                b_panels * steps * kUnitBytes,
                1 + 64 / (a_panels * b_panels)};
  };
  Plan plan = resident(16, 16, 16);
  switch (feed) {
    case TileFeed::kL1:
      return resident(8, 1, 1);
    case TileFeed::kL1AndL2:
      return resident(16, 8, 8);
    case TileFeed::kL2:
      return resident(kMaxSteps, 4, 4);
    case TileFeed::kSums:
      return resident(16, 16, 8);
    case TileFeed::kSumsL3:
      plan.a_bytes = kL3Bytes;
      return plan;
    case TileFeed::kSumsL3Memory:
      plan.a_bytes = kL3Bytes;
      plan.b_bytes = kMemoryBytes;
      return plan;
  }
  TESSERA_CHECK(false, "feed {}", static_cast<int>(feed));
  return plan;
}

// Memory traffic of a loop besides its products.
struct Traits {
  bool streams_b;
  bool moves_sums;
  int64_t a_lines, b_lines;  // prefetched per k-step
};
constexpr Traits kResident = {false, false, 0, 0};
constexpr Traits kStreaming = {true, false, 0, 0};
constexpr Traits kWithSums = {true, true, 0, 0};
constexpr Traits kFromL3 = {true, true, 2, 0};
constexpr Traits kFromMemory = {true, true, 2, 2};

}  // namespace
}  // namespace tessera

TESSERA_AMX_BEGIN
namespace tessera {
namespace {

void prefetch(const std::byte* line, int64_t count) {
  for (int64_t i = 0; i < count; ++i) _mm_prefetch(reinterpret_cast<const char*>(line + 64 * i), _MM_HINT_T1);
}

// The compiler's intrinsics take a register number only as a literal.
#define TESSERA_LOAD_B(tile, from)                      \
  if constexpr (kTraits.streams_b) {                    \
    _tile_stream_loadd(tile, from, amx::kTileRowBytes); \
  } else {                                              \
    _tile_loadd(tile, from, amx::kTileRowBytes);        \
  }
#define TESSERA_SWAP_SUMS(tile)                                                \
  if (kTraits.moves_sums && step == 0) {                                       \
    _tile_stored(tile, previous + tile * amx::kTileBytes, amx::kTileRowBytes); \
    _tile_loadd(tile, sums + tile * amx::kTileBytes, amx::kTileRowBytes);      \
  }

// One micro-tile over `steps`; the previous one's sums go to `previous` between its first products.
template <Traits kTraits>
void micro_tile(const std::byte* a, const std::byte* b, int64_t steps, std::byte* sums, std::byte* previous,
                const std::byte* next_a, const std::byte* next_b) {
  for (int64_t step = 0; step < steps; ++step, a += kUnitBytes, b += kUnitBytes) {
    TESSERA_LOAD_B(6, b);
    TESSERA_LOAD_B(7, b + amx::kTileBytes);
    _tile_loadd(4, a, amx::kTileRowBytes);
    TESSERA_SWAP_SUMS(0);
    _tile_dpbf16ps(0, 4, 6);
    TESSERA_SWAP_SUMS(1);
    prefetch(next_a, kTraits.a_lines);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + amx::kTileBytes, amx::kTileRowBytes);
    TESSERA_SWAP_SUMS(2);
    prefetch(next_b, kTraits.b_lines);
    _tile_dpbf16ps(2, 5, 6);
    TESSERA_SWAP_SUMS(3);
    if constexpr (kTraits.moves_sums) {
      for (int64_t i = 0; i < 4; ++i) {
        _mm_prefetch(reinterpret_cast<const char*>(sums + kMicroTileBytes + (4 * step + i) * 64),
                     _MM_HINT_T0);
      }
    }
    _tile_dpbf16ps(3, 5, 7);
    next_a += 64 * kTraits.a_lines;
    next_b += 64 * kTraits.b_lines;
  }
}

#undef TESSERA_LOAD_B
#undef TESSERA_SWAP_SUMS

void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

void store_sums(std::byte* to) {
  _tile_stored(0, to, amx::kTileRowBytes);
  _tile_stored(1, to + amx::kTileBytes, amx::kTileRowBytes);
  _tile_stored(2, to + 2 * amx::kTileBytes, amx::kTileRowBytes);
  _tile_stored(3, to + 3 * amx::kTileBytes, amx::kTileRowBytes);
}

// Multiplies all panels of a with all of b once. Advances both offsets.
template <Traits kTraits>
void run_block(const Plan& plan, const std::byte* a, int64_t* next_a, const std::byte* b, int64_t* next_b,
               std::byte* all_sums) {
  const int64_t panel_bytes = plan.steps * kUnitBytes, b_block_bytes = plan.b_panels * panel_bytes;
  const auto advance = [](int64_t offset, int64_t bytes, int64_t all) {
    return offset + 2 * bytes <= all ? offset + bytes : 0;
  };
  const std::byte* const b_block = b + *next_b;
  *next_b = advance(*next_b, b_block_bytes, plan.b_bytes);
  const std::byte* fetch_b = b + *next_b;
  std::byte* previous = all_sums;
  int64_t index = 0;
  for (int64_t i = 0; i < plan.a_panels; ++i) {
    const std::byte* const a_panel = a + *next_a;
    *next_a = advance(*next_a, panel_bytes, plan.a_bytes);
    const std::byte* fetch_a = a + *next_a;
    for (int64_t j = 0; j < plan.b_panels; ++j, ++index) {
      std::byte* const sums = all_sums + index * kMicroTileBytes % kAllSumsBytes;
      micro_tile<kTraits>(a_panel, b_block + j * panel_bytes, plan.steps, sums, previous, fetch_a, fetch_b);
      previous = sums;
      fetch_a += 64 * kTraits.a_lines * plan.steps;
      fetch_b += 64 * kTraits.b_lines * plan.steps;
    }
  }
}

// Computes one micro-tile from zero; sums are [2][2] tiles.
void run_sample(const std::byte* a, const std::byte* b, int64_t steps, std::byte* sums) {
  const amx::TileScope tiles;
  zero_sums();
  micro_tile<kStreaming>(a, b, steps, nullptr, nullptr, a, b);
  store_sums(sums);
}

using RunBlock = void (*)(const Plan& plan, const std::byte* a, int64_t* next_a, const std::byte* b,
                          int64_t* next_b, std::byte* all_sums);

RunBlock run_block_of(TileFeed feed) {
  switch (feed) {
    case TileFeed::kL1:
    case TileFeed::kL2:
      return run_block<kResident>;
    case TileFeed::kL1AndL2:
      return run_block<kStreaming>;
    case TileFeed::kSums:
      return run_block<kWithSums>;
    case TileFeed::kSumsL3:
      return run_block<kFromL3>;
    case TileFeed::kSumsL3Memory:
      return run_block<kFromMemory>;
  }
  TESSERA_CHECK(false, "feed {}", static_cast<int>(feed));
  return nullptr;
}

}  // namespace
}  // namespace tessera
TESSERA_AMX_END

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// Keeps sums small forever: values of either sign below 2^-16, so that they stay finite however long they
// accumulate.
void fill_random(std::span<bf16> values, uint64_t seed) {
  const CounterRng rng(seed, 0);
  constexpr size_t kPeriod = 65521;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i < kPeriod ? to_bf16(0x1p-16f * (2 * rng.uniform(i) - 1)) : values[i - kPeriod];
  }
}

}  // namespace

const char* tile_feed_text(TileFeed feed) {
  switch (feed) {
    case TileFeed::kL1:
      return "a L1, b L1";
    case TileFeed::kL1AndL2:
      return "a L1, b L2";
    case TileFeed::kL2:
      return "a L2, b L2";
    case TileFeed::kSums:
      return "a L1, b L2, c L2";
    case TileFeed::kSumsL3:
      return "a L3, b L2, c L2";
    case TileFeed::kSumsL3Memory:
      return "a L3, b memory, c L2";
  }
  return "";
}

TileFeedMeter::TileFeedMeter(ThreadPool& pool) : pool_(&pool) {
  const AmxPermission& permission = request_amx_permission();
  if (!permission.granted)
    fail(ExitCode::kBadConfig, "the tile unit cannot be measured: {}", permission.reason);
  for (int64_t i = 0; i < pool.num_threads(); ++i) {
    // Prefetches run up to one micro-tile past the last sums.
    buffers_.push_back(
        {PageBuffer(kL3Bytes), PageBuffer(kMemoryBytes), PageBuffer(kAllSumsBytes + 2 * kMicroTileBytes)});
  }
  pool.parallel_for(pool.num_threads(), [&](int64_t i) {
    Buffers& buffers = buffers_[static_cast<size_t>(i)];
    fill_random(buffers.a.as<bf16>(), 1);
    fill_random(buffers.b.as<bf16>(), 2);
  });
}

double TileFeedMeter::measure(TileFeed feed, double seconds) {
  const Plan plan = plan_of(feed);
  const RunBlock run = run_block_of(feed);
  const double operations =
      kOperationsPerStep * static_cast<double>(plan.steps * plan.a_panels * plan.b_panels * plan.repeats);
  std::vector<double> rates(buffers_.size());
  pool_->parallel_for(pool_->num_threads(), [&](int64_t index) {
    Buffers& buffers = buffers_[static_cast<size_t>(index)];
    const amx::TileScope tiles;
    zero_sums();
    int64_t next_a = 0, next_b = buffers.next_b < plan.b_bytes ? buffers.next_b : 0, blocks = 0;
    const auto block = [&] {
      for (int64_t i = 0; i < plan.repeats; ++i) {
        run(plan, buffers.a.data(), &next_a, buffers.b.data(), &next_b, buffers.sums.data());
      }
    };
    block();  // brings reused data into the caches
    const Clock::time_point begin = Clock::now();
    double elapsed = 0;
    do {
      block();
      ++blocks;
      elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    } while (elapsed < seconds);
    buffers.next_b = feed == TileFeed::kSumsL3Memory ? next_b : 0;
    rates[static_cast<size_t>(index)] = operations * static_cast<double>(blocks) / elapsed * 1e-12;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

TileFeedMeter::Sample TileFeedMeter::sample() const {
  constexpr int64_t kSteps = 16, kDepth = kSteps * amx::kTileDepth, kWidth = 32;
  const bf16* a = buffers_.front().a.as<bf16>().data();
  const bf16* b = buffers_.front().b.as<bf16>().data();
  Sample sample = {std::vector<float>(kWidth * kDepth), std::vector<float>(kDepth * kWidth),
                   std::vector<float>(kWidth * kWidth)};
  // Units of two tiles: rows of a, and columns of b in pairs of the contraction.
  for (int64_t k = 0; k < kDepth; ++k) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const int64_t tile = (k / 32 * 2 + i / 16) * 512;
      sample.a[static_cast<size_t>(i * kDepth + k)] = to_float(a[tile + i % 16 * 32 + k % 32]);
      sample.b[static_cast<size_t>(k * kWidth + i)] =
          to_float(b[tile + k % 32 / 2 * 32 + i % 16 * 2 + k % 2]);
    }
  }
  alignas(64) float tiles[4][16][16];
  run_sample(buffers_.front().a.data(), buffers_.front().b.data(), kSteps,
             reinterpret_cast<std::byte*>(tiles));
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      sample.sums[static_cast<size_t>(i * kWidth + j)] = tiles[i / 16 * 2 + j / 16][i % 16][j % 16];
    }
  }
  return sample;
}

}  // namespace tessera
