#include "optim/state_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <thread>

#include "base/divide_up.h"
#include "base/rng.h"
#include "base/unique_fd.h"
#include "disk_shim.h"
#include "expect_error.h"
#include "optim/elementwise.h"
#include "optim/optimizer_state.h"
#include "test_folder.h"

namespace tessera {
namespace {

// Calls body(byte) for every byte of these elements, as they are stored.
template <typename Body>
void for_each_byte(DType dtype, int64_t first, int64_t count, const Body& body) {
  for (int64_t i = state_bytes(dtype, first); i < state_bytes(dtype, first + count); ++i) body(i);
}

// By chunks_ahead: from the smallest ring to one that holds the whole file.
class StateFileRing : public testing::TestWithParam<int64_t> {};

INSTANTIATE_TEST_SUITE_P(, StateFileRing, testing::Values(3, 4, 5, 8, 11, 40));

TEST_P(StateFileRing, ChunksAndPiecesInAnyOrderKeepEveryValue) {
  const TestFolder folder;
  const std::vector<FilePart> parts = {
      DType::kF32, {DType::kI8, 193}, {DType::kBF16, 4032}, DType::kU8, {DType::kI16, 2048}};
  constexpr int64_t kElements = 50'000;
  StateFile file({folder / "state", {.queue_depth = 4}, GetParam()}, parts, kElements);
  const int64_t chunk_elements = file.chunk_elements(), num_chunks = divide_up(kElements, chunk_elements);
  ASSERT_GT(num_chunks, 10);
  std::vector<std::vector<std::byte>> expected;
  for (const FilePart& part : parts) expected.emplace_back(state_bytes(part.dtype, kElements));
  std::mt19937_64 random(3 + static_cast<uint64_t>(GetParam()));
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  int64_t num_in_file = 0;
  for (int round = 0; round < 150; ++round) {
    const size_t part = static_cast<size_t>(below(std::ssize(parts)));
    const DType dtype = parts[part].dtype;
    if (round % 3 == 0) {  // an update of several chunks
      const int64_t begin = below(num_chunks), end = std::min(begin + 1 + below(9), num_chunks);
      if (below(2) == 0) file.announce(begin, end);
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const StateFile::Parts& open = file.open(chunk, end);
        const int64_t count = std::min(chunk_elements, kElements - chunk * chunk_elements);
        for_each_byte(dtype, 0, count, [&](int64_t i) {
          const auto at = static_cast<size_t>(state_bytes(dtype, chunk * chunk_elements) + i);
          ASSERT_EQ(open[part][i], expected[part][at]);
          open[part][i] = expected[part][at] = static_cast<std::byte>(random());
        });
      }
      continue;
    }
    const int64_t block = state_block(dtype);
    const int64_t begin = below(kElements) / block * block, count = 1 + below(kElements - begin);
    const auto whole = [&](int64_t done) { return state_bytes(dtype, begin + done); };
    if (round % 3 == 1) {
      file.write(part, begin, count, [&](std::byte* values, int64_t first, int64_t done, int64_t now) {
        for_each_byte(dtype, first, now, [&](int64_t i) {
          const auto at = static_cast<size_t>(whole(done) + i - state_bytes(dtype, first));
          values[i] = expected[part][at] = static_cast<std::byte>(random());
        });
      });
    } else {
      file.read(part, begin, count, [&](const std::byte* values, int64_t first, int64_t done, int64_t now) {
        for_each_byte(dtype, first, now, [&](int64_t i) {
          ASSERT_EQ(values[i],
                    expected[part][static_cast<size_t>(whole(done) + i - state_bytes(dtype, first))]);
        });
      });
      file.read_stored(
          part, begin, count, [&](int64_t done, std::span<const std::byte> stored, const FileBytes* in_file) {
            const auto wanted =
                std::span(expected[part]).subspan(static_cast<size_t>(whole(done)), stored.size());
            ASSERT_TRUE(std::ranges::equal(stored, wanted));
            if (in_file == nullptr) return;
            ASSERT_EQ(in_file->size_bytes, std::ssize(stored));
            EXPECT_EQ(in_file->offset_bytes % kDirectAlignment,
                      (parts[part].phase_bytes + state_bytes(dtype, (begin + done) % chunk_elements)) %
                          kDirectAlignment);
            // Through the page cache, for bytes that direct I/O refuses.
            const UniqueFd cached(
                ::open(fmt::format("/proc/self/fd/{}", in_file->fd).c_str(), O_RDONLY | O_CLOEXEC));
            std::vector<std::byte> found(stored.size());
            ASSERT_EQ(pread(cached.get(), found.data(), found.size(), in_file->offset_bytes),
                      std::ssize(found));
            ASSERT_TRUE(std::ranges::equal(found, wanted));
            num_in_file += in_file->size_bytes;
          });
    }
  }
  EXPECT_GT(file.statistics().bytes_written, 0);
  EXPECT_GT(num_in_file, kElements);
}

// Groups of chunks that are updated last group first, as in a backward pass; nothing is called between two of
// them.
TEST_P(StateFileRing, ReadsTheNextGroupFromTheUpdateBeforeOn) {
  constexpr int64_t kChunks = 64, kGroup = 8;
  const TestFolder folder;
  StateFile file({folder / "state", {}, GetParam()}, {DType::kF32}, kChunks * kDirectAlignment);
  const StateFile::Sizes sizes({DType::kF32}, kChunks * kDirectAlignment, GetParam());
  ASSERT_EQ(sizes.num_chunks, kChunks);
  ASSERT_EQ(sizes.num_slots, std::min(kChunks, GetParam() + 4));
  const auto num_read = [&] { return file.statistics().bytes_read / sizes.chunk_bytes; };
  int64_t num_opened = 0;
  for (int64_t group = kChunks - kGroup; group > 2 * kGroup; group -= kGroup) {
    file.announce(group - kGroup, group);
    for (int64_t chunk = group; chunk < group + kGroup; ++chunk) {
      file.open(chunk, group + kGroup);
      ++num_opened;
      // One group is announced at a time.
      const int64_t num_known = group + kGroup - chunk - 1 + kGroup;
      ASSERT_EQ(num_read(), num_opened + std::min(GetParam(), num_known)) << "chunk " << chunk;
    }
  }
}

TEST(StateFile, ARingHasRoomForWhatItIsGiven) {
  const std::vector<FilePart> parts = {DType::kI8, DType::kU8, DType::kI16};
  const int64_t num_elements = int64_t{8} << 30;
  const StateFile::Sizes least(parts, num_elements, 0), layer(parts, num_elements, 417);
  EXPECT_EQ(least.num_ahead, kMinChunksAhead);
  EXPECT_EQ(layer.num_ahead, 417);
  EXPECT_EQ(layer.ahead_bytes(), 417 * layer.chunk_bytes);
  EXPECT_EQ(layer.memory_bytes() - least.memory_bytes(), (417 - 3) * layer.chunk_bytes);
  EXPECT_EQ(layer.file_bytes(), least.file_bytes());
  const StateFile::Sizes huge(parts, num_elements, 1'000'000);
  EXPECT_LT(2 * huge.num_slots, AsyncFile::kMaxTransfers) << "its transfers are started without waiting";
}

std::vector<float> normal_numbers(int64_t count, uint64_t seed) {
  const CounterRng rng(seed, 0);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(rng.normal(static_cast<uint64_t>(i)));
  return values;
}

// Two states with the same history, one of them in a file.
struct StateInFileTypes {
  DType weights, gradients;

  friend void PrintTo(const StateInFileTypes& types, std::ostream* out) {
    *out << dtype_name(types.weights) << ", " << dtype_name(types.gradients);
  }
};

class StateInFile : public testing::TestWithParam<StateInFileTypes> {
 protected:
  static constexpr int64_t kCount = 60'000;

  struct Side {
    Side(DType weight_dtype, DType gradient_dtype, ThreadPool& pool,
         const std::optional<StateFileSettings>& file)
        : weights(kCount * 4),
          gradients(kCount * 4),
          state(std::make_unique<AdamW>(OptimizerSpec{.weight_decay = 0.1}),
                {{5, 9'000, true}, {9'100, 30'000, false}, {40'000, 20'000, true}},
                TensorView(weights.data(), weight_dtype, {kCount}),
                TensorView(gradients.data(), gradient_dtype, {kCount}), pool, {}, file) {}

    std::vector<float> values(StateKind kind) const {
      std::vector<float> result(kCount);
      state.read(kind, 0, 0, result);
      return result;
    }

    PageBuffer weights, gradients;
    OptimizerState state;
  };

  void set_gradients(Side& side, uint64_t seed) const {
    const std::vector<float> values = normal_numbers(kCount, seed);
    if (GetParam().gradients == DType::kF32) {
      std::ranges::copy(values, side.gradients.as<float>().begin());
    } else {
      std::ranges::transform(values, side.gradients.as<bf16>().begin(),
                             [](float value) { return to_bf16(value); });
    }
  }

  void expect_equal(const Side& a, const Side& b) const {
    EXPECT_TRUE(std::ranges::equal(a.weights.as<std::byte>(), b.weights.as<std::byte>()));
    for_each_state_kind(
        2, [&](StateKind kind) { EXPECT_EQ(a.values(kind), b.values(kind)) << static_cast<size_t>(kind); });
  }

  const TestFolder folder_;
  ThreadPool pool_{2};
  Side memory_{GetParam().weights, GetParam().gradients, pool_, {}};
  Side file_{GetParam().weights, GetParam().gradients, pool_, StateFileSettings{folder_ / "state"}};
};

INSTANTIATE_TEST_SUITE_P(, StateInFile,
                         testing::Values(StateInFileTypes{DType::kBF16, DType::kF32},
                                         StateInFileTypes{DType::kBF16, DType::kBF16},
                                         StateInFileTypes{DType::kF32, DType::kF32},
                                         StateInFileTypes{DType::kF32, DType::kBF16}));

TEST_P(StateInFile, HasTheBitsOfStateInMemory) {
  for (Side* side : {&memory_, &file_}) side->state.write_master(0, normal_numbers(kCount, 1));
  expect_equal(memory_, file_);
  for (int64_t step = 1; step <= 4; ++step) {
    for (Side* side : {&memory_, &file_}) {
      set_gradients(*side, static_cast<uint64_t>(step));
      // In order, and last range first.
      for (int64_t i = 0; i < 3; ++i) {
        const int64_t range = step % 2 == 0 ? i : 2 - i, next = step % 2 == 0 ? (i + 1) % 3 : (4 - i) % 3;
        side->state.announce(next, next + 1);
        side->state.update(range, range + 1, {step, 1e-2, 0.5});
      }
    }
    expect_equal(memory_, file_);
  }
  EXPECT_EQ(memory_.state.file_statistics().bytes_written, 0);
  EXPECT_GT(file_.state.file_statistics().bytes_written, 4 * kCount * 8);
}

// Any number of ranges at a time, in any order, with rings of any size; some of what is announced comes
// later.
TEST_P(StateInFile, HasTheBitsOfStateInMemoryWithAnyRing) {
  std::mt19937_64 random(11);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  for (int round = 0; round < 12; ++round) {
    const int64_t chunks_ahead = 3 + below(16);
    SCOPED_TRACE(fmt::format("round {}, {} chunks ahead", round, chunks_ahead));
    Side memory(GetParam().weights, GetParam().gradients, pool_, {});
    Side file(
        GetParam().weights, GetParam().gradients, pool_,
        StateFileSettings{
            folder_ / "ring", {.queue_depth = 1 + below(8), .use_io_uring = below(2) == 0}, chunks_ahead});
    for (Side* side : {&memory, &file}) side->state.write_master(0, normal_numbers(kCount, 1));
    for (int64_t step = 1; step <= 8; ++step) {
      const int64_t first = below(3), last = first + 1 + below(3 - first);
      const int64_t next = below(3), next_end = next + below(4 - next);
      for (Side* side : {&memory, &file}) {
        set_gradients(*side, static_cast<uint64_t>(step));
        side->state.announce(next, next_end);
        side->state.update(first, last, {step, 1e-2, 0.5});
      }
      if (below(3) == 0) {
        EXPECT_EQ(memory.values(state_kind(0)), file.values(state_kind(0)));
      }
    }
    expect_equal(memory, file);
  }
}

TEST_P(StateInFile, TakesWhatACheckpointHas) {
  for (Side* side : {&memory_, &file_}) {
    for_each_state_kind(2, [&](StateKind kind) {
      std::vector<float> values = normal_numbers(kCount, 10 + static_cast<uint64_t>(kind));
      if (kind == state_kind(1)) {
        for (float& square : values) square *= square;
      }
      pool_.parallel_for(4, [&](int64_t i) {  // parts share pages and blocks
        const int64_t begin = i * 15'001, end = std::min(begin + 15'001, kCount);
        side->state.write(
            kind, begin, begin,
            std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
    });
    set_gradients(*side, 1);
    side->state.update({1, 1e-2, 0.5});
  }
  expect_equal(memory_, file_);
}

TEST_P(StateInFile, IsReadWhileOtherElementsChange) {
  for (Side* side : {&memory_, &file_}) {
    side->state.write_master(0, normal_numbers(kCount, 1));
    set_gradients(*side, 1);
    side->state.update(0, 1, {1, 1e-2, 0.5});
  }
  std::vector<float> expected(9'000), found(9'000);
  memory_.state.read(state_kind(0), 5, 5, expected);
  std::jthread reader([&] {
    for (int i = 0; i < 50; ++i) file_.state.read(state_kind(0), 5, 5, found);
  });
  file_.state.update(1, 3, {1, 1e-2, 0.5});
  reader.join();
  EXPECT_EQ(found, expected);
  memory_.state.update(1, 3, {1, 1e-2, 0.5});
  expect_equal(memory_, file_);
}

TEST_P(StateFileRing, AFailingDiskEndsTheUpdateWithOneLine) {
  const TestFolder folder;
  StateFile file({folder / "state", {.use_io_uring = false}, GetParam()}, {DType::kF32, DType::kI16},
                 200'000);
  const DiskFaults faults(folder.path(), [](const DiskCall& call) {
    return DiskFault{.error = call.name == "pwrite" ? EIO : 0};
  });
  expect_error(ExitCode::kIoError, {(folder / "state").native(), "write of", "Input/output error"}, [&] {
    for (int64_t chunk = 0; chunk < 80; ++chunk)
      file.open(chunk % 40, 40);  // the second time all are written
  });
}

}  // namespace
}  // namespace tessera
