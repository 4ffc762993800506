#include "comm/network/network_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>

#include "base/float_types.h"
#include "comm/store/store_server.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "support/draws.h"
#include "support/ranks/network_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

// Tiny, odd, one chunk, as many chunks as connections and one element more, many chunks.
const std::vector<int64_t> kCounts = {0, 1, 3, 255, 4099, 70'001, 1 << 20, 3'000'017};

class NetworkGroupTest : public OverFabrics {};
TESSERA_OVER_FABRICS(NetworkGroupTest);

// The first bytes of a pattern, from one of them on.
std::span<const std::byte> pattern(int64_t begin, int64_t count) {
  static const std::vector<std::byte> bytes = values_of(0, kCounts.back() + 1000, [](int64_t i) {
    return static_cast<std::byte>((i * 131 + (i >> 8) * 7) & 0xFF);
  });
  return std::span(bytes).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}
std::vector<std::byte> pattern_bytes(int64_t begin, int64_t count) {
  const std::span<const std::byte> bytes = pattern(begin, count);
  return {bytes.begin(), bytes.end()};
}

TEST_P(NetworkGroupTest, GathersEveryPartOnEveryMember) {
  for (int n = 1; n <= most_members(); ++n) {
    const auto errors = run_members({.size = n, .options = options()}, [n](NetworkGroup& group) {
      for (const int64_t count : kCounts) {
        const std::vector<Part> parts = even_parts(count, n);
        std::vector<std::byte> buffer(static_cast<size_t>(count));
        const Part mine = parts[static_cast<size_t>(group.index())];
        const std::vector<std::byte> expected = pattern_bytes(0, count);
        copy_part(mine, expected, &buffer);
        group.wait(group.all_gather(buffer, parts, {"weights", 3}));
        ASSERT_TRUE(same_bits(buffer, expected)) << n << " members";
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

// Multiples of 1/127 of the largest value, which every third value is: up to half a step is lost only in a
// last block without it.
TEST_P(NetworkGroupTest, GathersValuesInInt8) {
  const std::vector<bf16> values = values_of(0, kCounts.back(), [](int64_t i) {
    return to_bf16(static_cast<float>(i % 3 == 0 ? 127 : (i * 31) % 255 - 127) / 64);
  });
  for (int n = 1; n <= most_members(); ++n) {
    const auto errors = run_members({.size = n, .options = options()}, [&](NetworkGroup& group) {
      for (const int64_t count : kCounts) {
        const std::vector<Part> parts = even_parts(count, n);
        std::vector<bf16> buffer(static_cast<size_t>(count));
        const Part mine = parts[static_cast<size_t>(group.index())];
        copy_part(mine, values, &buffer);
        const NetworkCounters before = group.counters();
        group.wait(group.all_gather_int8(buffer, parts, {"weights", 3}));
        if (n > 1) {
          EXPECT_EQ(group.counters().sent_bytes - before.sent_bytes,
                    (n - 1) * int8_blocks_bytes(mine.size()));
        }
        float largest = 0;
        for (int64_t i = 0; i < count; ++i) {
          const float difference = std::fabs(to_float(buffer.data()[i]) - to_float(values.data()[i]));
          if (!(difference <= largest)) largest = difference;
        }
        ASSERT_LE(largest, 1.0f / 128) << n << " members, " << count << " elements";
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

// A member's own part is not rounded, and all others see the same.
TEST_P(NetworkGroupTest, RoundsOnlyWhatTravelsInInt8) {
  constexpr int64_t kCount = 300'011;
  constexpr int kMembers = 3;
  const std::vector<bf16> values =
      values_of(0, kCount, [](int64_t i) { return to_bf16(std::sin(static_cast<float>(i * i % 1009))); });
  std::vector<bf16> rounded;
  const std::vector<Part> parts = even_parts(kCount, kMembers);
  for (const Part& part : parts) {
    std::vector<bf16> decoded(static_cast<size_t>(part.size()));
    std::vector<std::byte> blocks(static_cast<size_t>(int8_blocks_bytes(part.size())));
    encode_int8_blocks(values.data() + part.begin, part.size(), blocks.data());
    decode_int8_blocks(blocks.data(), part.size(), decoded.data());
    rounded.insert(rounded.end(), decoded.begin(), decoded.end());
  }
  const auto errors = run_members({.size = kMembers, .options = options()}, [&](NetworkGroup& group) {
    const Part mine = parts[static_cast<size_t>(group.index())];
    std::vector<bf16> buffer(kCount), expected = rounded;
    copy_part(mine, values, &buffer);
    copy_part(mine, values, &expected);
    group.wait(group.all_gather_int8(buffer, parts, {"weights", 1}));
    ASSERT_TRUE(same_bits(buffer, expected));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Integers that bf16 and the sums represent exactly.
std::vector<float> small_integers(int member, int64_t count) {
  static const std::vector<float> all =
      values_of(0, kCounts.back() + 31, [](int64_t i) { return static_cast<float>(i * 7 % 31 - 15); });
  const auto begin = all.begin() + member * 13 % 31;
  return {begin, begin + count};
}

template <typename Reduce>
void check_exact_sums(const NetworkOptions& options, int most_members, const Reduce& reduce) {
  for (int n = 1; n <= most_members; n += sanitizer_stride(2)) {
    const auto errors = run_members({.size = n, .options = options}, [&](NetworkGroup& group) {
      for (const int64_t count : kCounts) {
        const std::vector<Part> parts = even_parts(count, n);
        const Part mine = parts[static_cast<size_t>(group.index())];
        std::vector<float> buffer = small_integers(group.index(), count), expected = buffer;
        for (int member = 0; member < n; ++member) {
          if (member == group.index()) continue;
          const std::vector<float> theirs = small_integers(member, count);
          for (int64_t i = mine.begin; i < mine.end; ++i) expected.data()[i] += theirs.data()[i];
        }
        group.wait(reduce(group, buffer, parts));
        ASSERT_TRUE(same_bits(buffer, expected)) << n << " members";
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

TEST_P(NetworkGroupTest, SumsSmallIntegersExactly) {
  check_exact_sums(options(), most_members(),
                   [](NetworkGroup& group, std::span<float> buffer, std::span<const Part> parts) {
                     return group.reduce_scatter(buffer, parts, {"gradients", 0});
                   });
}

TEST_P(NetworkGroupTest, SumsSmallIntegersExactlyInFloat32) {
  check_exact_sums(options(), most_members(),
                   [](NetworkGroup& group, std::span<float> buffer, std::span<const Part> parts) {
                     return group.reduce_scatter_f32(buffer, parts, {"gradients", 0});
                   });
}

float wave(int member, int64_t i) {
  return std::sin(static_cast<float>(i % 10'007 * (member + 3))) * std::exp2(static_cast<float>(i / 128 % 9));
}

// Expected results, computed on one thread: for each member, the sums of its part and its errors.
struct CodedSums {
  std::vector<std::vector<float>> sums;
  std::vector<std::vector<bf16>> errors;
};
CodedSums coded_sums(GradientCode code, const std::vector<std::vector<float>>& x,
                     const std::vector<std::vector<bf16>>& errors, const std::vector<Part>& parts,
                     bool adds_own_errors) {
  CodedSums result = {{}, errors};
  for (size_t owner = 0; owner < parts.size(); ++owner) {
    const Part part = parts[owner];
    std::vector<float>& sums = result.sums.emplace_back(static_cast<size_t>(part.size()));
    for (size_t member = 0; member < parts.size(); ++member) {
      std::vector<float> values(static_cast<size_t>(part.size()));
      if (member == owner) {
        const float* const own = x[member].data() + part.begin;
        const bf16* const own_errors = errors[member].data() + part.begin;
        for (int64_t i = 0; i < part.size(); ++i) {
          values.data()[i] = own[i] + (adds_own_errors ? to_float(own_errors[i]) : 0);
        }
      } else {
        std::vector<float> blocks(static_cast<size_t>(gradient_blocks_bytes(code, part.size()) / 4 + 1));
        bf16* const of_part = result.errors[member].data() + part.begin;
        auto* const bytes = reinterpret_cast<std::byte*>(blocks.data());
        encode_gradient_blocks(code, x[member].data() + part.begin, of_part, part.size(), bytes, of_part);
        decode_gradient_blocks(code, bytes, part.size(), 0, part.size(), values.data());
      }
      if (member == 0) {
        sums = values;
      } else {
        for (int64_t i = 0; i < part.size(); ++i) sums.data()[i] += values.data()[i];
      }
    }
  }
  return result;
}

// One member's side of it: thrown away, kept, and once more with the errors that this leaves.
void reduce_coded(NetworkGroup& group, GradientCode code, const std::vector<float>& x,
                  const std::vector<bf16>& errors, const std::vector<Part>& parts, const CodedSums& first,
                  const CodedSums& second) {
  const auto me = static_cast<size_t>(group.index());
  const Part mine = parts[me];
  std::vector<bf16> own_errors = errors;
  const auto reduce = [&](bool keeps_errors, bool adds_own_errors, const CodedSums& expected) {
    std::vector<float> buffer = x, sums = x;
    std::ranges::copy(expected.sums[me], sums.begin() + mine.begin);
    group.wait(group.reduce_scatter_coded(code, buffer, {own_errors.data(), keeps_errors, adds_own_errors},
                                          parts, {"gradients", 0}));
    ASSERT_TRUE(same_bits(buffer, sums));
    ASSERT_TRUE(same_bits(own_errors, keeps_errors ? errors : expected.errors[me])) << "of the errors";
  };
  reduce(/*keeps_errors=*/true, /*adds_own_errors=*/true, first);
  const NetworkCounters before = group.counters();
  reduce(/*keeps_errors=*/false, /*adds_own_errors=*/true, first);
  int64_t sent = 0;
  for (size_t member = 0; member < parts.size(); ++member) {
    if (member != me) sent += gradient_blocks_bytes(code, parts[member].size());
  }
  EXPECT_EQ(group.counters().sent_bytes - before.sent_bytes, sent);
  EXPECT_EQ(group.counters().received_bytes - before.received_bytes,
            (group.size() - 1) * gradient_blocks_bytes(code, mine.size()));
  reduce(/*keeps_errors=*/false, /*adds_own_errors=*/false, second);
}

void check_coded_sums(NetworkOptions options, GradientCode code, int n, int connections, int64_t count) {
  const std::vector<Part> parts = even_parts(count, n);
  std::vector<std::vector<float>> x(static_cast<size_t>(n));
  std::vector<std::vector<bf16>> errors(static_cast<size_t>(n));
  for (int member = 0; member < n; ++member) {
    x[static_cast<size_t>(member)] = values_of(0, count, [&](int64_t i) { return wave(member, i); });
    errors[static_cast<size_t>(member)] =
        values_of(0, count, [&](int64_t i) { return to_bf16(wave(member + 9, i) / 64); });
  }
  const CodedSums first = coded_sums(code, x, errors, parts, /*adds_own_errors=*/true);
  const CodedSums second = coded_sums(code, x, first.errors, parts, /*adds_own_errors=*/false);
  options.connections = connections;
  const TestMembers members = {.size = n, .options = options};
  const auto found = run_members(members, [&](NetworkGroup& group) {
    const auto me = static_cast<size_t>(group.index());
    reduce_coded(group, code, x[me], errors[me], parts, first, second);
  });
  EXPECT_THAT(found, Each(IsEmpty())) << n << " members, " << count << " elements";
}

// Bit for bit, whatever the numbers of connections and the sizes of chunks that follow from them. The errors
// of the own part stay as they are.
TEST_P(NetworkGroupTest, SumsInInt8AndInt4WithTheErrorsOfTheLastTime) {
  const std::vector<std::pair<int, int>> jobs = {{3, 4}, {2, 1}, {2, 3}, {4, 2}};
  for (const GradientCode code : {GradientCode::kInt8, GradientCode::kInt4}) {
    for (const int64_t count : {0, 1, 255, 70'001, 400'009}) {
      for (const auto& [members, connections] : drawn_cases(jobs)) {
        if (members <= most_members()) check_coded_sums(options(), code, members, connections, count);
      }
    }
  }
}

TEST_P(NetworkGroupTest, SumsBf16InFloat32AndRoundsOnce) {
  for (int n = 2; n <= std::min(4, most_members()); ++n) {
    for (const int64_t count : {0, 3, 70'001, 600'011}) {
      const std::vector<Part> parts = even_parts(count, n);
      const auto errors = run_members({.size = n, .options = options()}, [&](NetworkGroup& group) {
        const auto value_of = [&](int member) {
          return values_of(0, count, [&](int64_t i) { return to_bf16(wave(member, i)); });
        };
        std::vector<bf16> buffer = value_of(group.index()), expected = buffer;
        const Part mine = parts[static_cast<size_t>(group.index())];
        std::vector<float> sums(static_cast<size_t>(mine.size()));
        for (int member = 0; member < n; ++member) {
          const std::vector<bf16> theirs = value_of(member);
          for (int64_t i = 0; i < mine.size(); ++i) sums.data()[i] += to_float(theirs.data()[mine.begin + i]);
        }
        for (int64_t i = 0; i < mine.size(); ++i) expected.data()[mine.begin + i] = to_bf16(sums.data()[i]);
        group.wait(group.reduce_scatter_of_bf16(buffer, parts, {"errors", 0}));
        ASSERT_TRUE(same_bits(buffer, expected)) << n << " members";
      });
      EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
    }
  }
}

TEST_P(NetworkGroupTest, SendsEveryMemberAPartOfItsOwn) {
  const auto bytes = [](int from, int to, int64_t count) { return pattern(17 * from + 5 * to, count); };
  for (int n = 1; n <= most_members(); ++n) {
    const auto errors = run_members({.size = n, .options = options()}, [&](NetworkGroup& group) {
      const int me = group.index();
      for (const int64_t count :
           {int64_t{0}, int64_t{1}, int64_t{4099}, int64_t{70'001}, int64_t{1'500'017}}) {
        std::vector<Part> parts;
        std::vector<std::byte> sent, received(static_cast<size_t>(n * count));
        for (int to = 0; to < n; ++to) {
          parts.push_back({to * count, (to + 1) * count});
          const std::span<const std::byte> part = bytes(me, to, count);
          sent.insert(sent.end(), part.begin(), part.end());
        }
        const NetworkCounters before = group.counters();
        group.wait(group.all_to_all(sent, parts, received, parts, {"heads", 2}));
        EXPECT_EQ(group.counters().sent_bytes - before.sent_bytes, (n - 1) * count);
        for (int from = 0; from < n; ++from) {
          const std::vector<std::byte> nothing(static_cast<size_t>(count));
          const auto part = std::span<const std::byte>(received).subspan(static_cast<size_t>(from * count),
                                                                         static_cast<size_t>(count));
          ASSERT_TRUE(
              same_bits(part, from == me ? std::span<const std::byte>(nothing) : bytes(from, me, count)))
              << n << " members, from " << from;
        }
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

TEST_P(NetworkGroupTest, BroadcastsFromEveryRoot) {
  for (int n = 1; n <= most_members(); ++n) {
    const auto errors = run_members({.size = n, .options = options()}, [n](NetworkGroup& group) {
      for (const int64_t count : kCounts) {
        for (int root = 0; root < n; ++root) {
          const std::vector<std::byte> expected = pattern_bytes(root, count);
          std::vector<std::byte> buffer(static_cast<size_t>(count));
          if (group.index() == root) buffer = expected;
          group.wait(group.broadcast(buffer, root, {"settings"}));
          ASSERT_TRUE(same_bits(buffer, expected)) << n << " members, root " << root;
        }
      }
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

TEST_P(NetworkGroupTest, AddsInTheOrderOfMembersWithoutRoundingItsOwn) {
  constexpr int kMembers = 4;
  constexpr int64_t kCount = 300'011;
  const auto value = [](int member, int64_t i) {
    return std::sin(static_cast<float>(i * (member + 3))) * std::exp2(static_cast<float>(i % 9));
  };
  const auto errors = run_members({.size = kMembers, .options = options()}, [&](NetworkGroup& group) {
    const std::vector<Part> parts = even_parts(kCount, kMembers);
    const Part mine = parts[static_cast<size_t>(group.index())];
    std::vector<float> buffer(kCount);
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (int64_t i = 0; i < kCount; ++i) buffer[static_cast<size_t>(i)] = value(group.index(), i);
      group.wait(group.reduce_scatter(buffer, parts, {"gradients", 1}));
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        float expected = 0;
        for (int member = 0; member < kMembers; ++member) {
          const float x = value(member, i);
          expected += member == group.index() ? x : to_float(to_bf16(x));
        }
        ASSERT_EQ(buffer[static_cast<size_t>(i)], expected) << "element " << i << ", repeat " << repeat;
      }
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST_P(NetworkGroupTest, EmptyPartsTakePart) {
  const auto errors = run_members({.size = 3, .options = options()}, [](NetworkGroup& group) {
    const std::vector<Part> parts = {{0, 0}, {0, 1'000'003}, {1'000'003, 1'000'003}};
    constexpr size_t kCount = 1'000'003;
    std::vector<float> buffer(kCount, static_cast<float>(group.index() + 1));
    const std::vector<float> sums(kCount, 6), unchanged = buffer;
    group.wait(group.reduce_scatter(buffer, parts, {"gradients", 0}));
    ASSERT_TRUE(same_bits(buffer, group.index() == 1 ? sums : unchanged));
    group.wait(group.all_gather(std::as_writable_bytes(std::span(buffer)),
                                std::vector<Part>{{0, 0}, {0, 4'000'012}, {4'000'012, 4'000'012}},
                                {"sums", 0}));
    ASSERT_TRUE(same_bits(buffer, sums));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST_P(NetworkGroupTest, CountsEveryByteOfPayload) {
  for (int n = 2; n <= 4 && n <= most_members(); ++n) {
    const auto errors = run_members({.size = n, .options = options()}, [n](NetworkGroup& group) {
      const int64_t count = 1'000'000 * n;
      std::vector<float> buffer(static_cast<size_t>(count));
      const std::vector<Part> parts = even_parts(count, n);
      group.wait(group.reduce_scatter(buffer, parts, {"gradients", 0}));
      EXPECT_EQ(group.counters().sent_bytes, 2 * count / n * (n - 1));
      EXPECT_EQ(group.counters().received_bytes, 2 * count / n * (n - 1));
      group.wait(
          group.all_gather(std::as_writable_bytes(std::span(buffer)), even_parts(4 * count, n), {"sums"}));
      EXPECT_EQ(group.counters().sent_bytes, (2 + 4) * count / n * (n - 1));
      EXPECT_EQ(group.counters().received_bytes, (2 + 4) * count / n * (n - 1));
      EXPECT_GE(group.counters().busy_s + 1e-9, group.counters().wait_s);
      double time_s = 0;
      for (const CollectiveCount& kind : group.collectives()) {
        const bool is_sum = kind.operation == "reduce_scatter_bf16",
                   is_gather = kind.operation == "all_gather";
        EXPECT_EQ(kind.num_calls, is_sum || is_gather ? 1 : 0) << kind.operation;
        EXPECT_EQ(kind.bytes, is_sum ? 2 * count : is_gather ? 4 * count : 0) << kind.operation;
        time_s += kind.time_s;
      }
      EXPECT_NEAR(time_s, group.counters().busy_s, 1e-9);
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << n << " members";
  }
}

TEST(NetworkGroup, MembersMeetThroughTheStore) {
  constexpr int kRanks = 4;
  const auto server = StoreServer::start({.bind_addresses = {"127.0.0.1"},
                                          .port = 0,
                                          .secret = "the secret of the job",
                                          .run_id = "net",
                                          .world_size = kRanks,
                                          .restart_count = 0,
                                          .timing = {}});
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world;
        world.rank = rank;
        world.world_size = kRanks;
        world.local_rank = rank % 2;
        world.local_world_size = 2;
        world.node_rank = rank / 2;
        world.num_nodes = 2;
        world.master_port = server->port();
        world.agent_has_store = true;
        world.run_id = "net";
        world.secret = "the secret of the job";
        world.host = "h" + std::to_string(rank / 2);
        const auto store = StoreClient::join(world, {});
        NetworkGroup group("rail" + std::to_string(rank % 2), {rank % 2, rank % 2 + 2}, rank, store.get(), {},
                           store->failures());
        EXPECT_EQ(group.size(), 2);
        EXPECT_EQ(group.index(), rank / 2);
        std::vector<float> buffer(1000, static_cast<float>(rank));
        group.wait(group.reduce_scatter_f32(buffer, even_parts(1000, 2), {"gradients"}));
        EXPECT_EQ(buffer[static_cast<size_t>(500 * group.index())], static_cast<float>(2 * (rank % 2) + 2));
        store->leave();
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST_P(NetworkGroupTest, OperationsQueueBehindOneAnother) {
  const auto errors = run_members({.size = 3, .options = options()}, [](NetworkGroup& group) {
    constexpr int kOperations = 2 * NetworkGroup::kMaxRunning + 7;
    std::vector<std::vector<float>> buffers(kOperations, std::vector<float>(301, 1.0f));
    const std::vector<Part> parts = even_parts(301, 3);
    NetworkGroup::Ticket last = 0;
    for (int i = 0; i < kOperations; ++i) {
      last = group.reduce_scatter(buffers[static_cast<size_t>(i)], parts, {"gradients", i});
    }
    group.wait(last);
    EXPECT_TRUE(group.done(last));
    const Part mine = parts[static_cast<size_t>(group.index())];
    for (const std::vector<float>& buffer : buffers) ASSERT_EQ(buffer[static_cast<size_t>(mine.begin)], 3.0f);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST_P(NetworkGroupTest, AbandonedOperationsTouchNoBufferAndFail) {
  std::atomic<bool> abandoned = false;
  const auto errors = run_members({.size = 2, .options = options()}, [&](NetworkGroup& group) {
    group.abandon();  // nothing has been issued yet
    std::vector<std::byte> small(8);
    group.wait(group.all_gather(small, even_parts(8, 2), {"before"}));
    if (group.index() == 1) {
      while (!abandoned) std::this_thread::yield();
      return;
    }
    auto buffer = std::make_unique<std::vector<std::byte>>(1 << 20);
    const NetworkGroup::Ticket ticket = group.all_gather(*buffer, even_parts(1 << 20, 2), {"weights"});
    group.abandon();
    buffer.reset();
    EXPECT_FALSE(group.done(ticket));
    EXPECT_THROW(group.wait(ticket), Error);
    abandoned = true;
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace tessera
