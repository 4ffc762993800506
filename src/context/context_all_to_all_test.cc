#include "context/context_all_to_all.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/draws.h"
#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;
using testing::IsEmpty;

struct TeamCase {
  int num_nodes, local_world_size;
  int64_t size;

  friend void PrintTo(const TeamCase& of, std::ostream* out) {
    *out << of.num_nodes << "x" << of.local_world_size << " in teams of " << of.size;
  }
};

class ContextAllToAllTest : public testing::TestWithParam<TeamCase> {};
INSTANTIATE_TEST_SUITE_P(Teams, ContextAllToAllTest,
                         testing::Values(TeamCase{1, 2, 2}, TeamCase{1, 4, 2}, TeamCase{1, 3, 3},
                                         TeamCase{2, 1, 2}, TeamCase{2, 2, 4}, TeamCase{2, 2, 2},
                                         TeamCase{4, 1, 2}, TeamCase{3, 2, 6}));

// Byte `column` of token `token` of the team's rows, in all-to-all `number`.
std::byte byte_of(int64_t number, int64_t token, int64_t column) {
  return static_cast<std::byte>((number * 17 + token * 131 + column * 7 + (token * column >> 6)) & 0xFF);
}

// Columns of a row that belong to a member.
std::vector<int64_t> columns_of(const std::vector<RowSection>& sections, int64_t size, int64_t member) {
  std::vector<int64_t> columns;
  int64_t begin = 0;
  for (const RowSection& section : sections) {
    const int64_t share = section.width * section.readers / size;
    for (int64_t i = 0; i < share; ++i) columns.push_back(begin + member / section.readers * share + i);
    begin += section.width;
  }
  return columns;
}

// Sizes drawn alike on every rank, at most as many bytes as are reserved, several times in a row.
TEST_P(ContextAllToAllTest, MovesEveryByteToItsPlaceAndBack) {
  const auto& [num_nodes, local_world_size, size] = GetParam();
  constexpr int64_t kMaxBytes = 1 << 20;
  const auto errors = run_communicators(num_nodes, local_world_size, {}, [size = size](Communicator& comm) {
    const ContextTeam team = context_team(comm.world(), size);
    ThreadPool pool(2, CpuLimits());
    ContextAllToAll all_to_all(comm, team, kMaxBytes, pool);
    std::mt19937_64 random(7);
    for (int64_t number = 0; number < static_cast<int64_t>(draws(12, 4)); ++number) {
      std::vector<RowSection> sections;
      int64_t row_bytes = 0;
      for (uint64_t left = 1 + random() % 3; left > 0; --left) {
        sections.push_back({size * static_cast<int64_t>(1 + random() % 200)});
        row_bytes += sections.back().width;
      }
      const int64_t num_tokens =
          1 + static_cast<int64_t>(random() % static_cast<uint64_t>(kMaxBytes / row_bytes));
      std::vector<std::byte> own, shared(static_cast<size_t>(num_tokens * row_bytes)), back = shared;
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t column = 0; column < row_bytes; ++column)
          own.push_back(byte_of(number, t * size + team.index, column));
      }
      all_to_all.to_shares(sections, num_tokens, own.data(), shared.data(), {"bytes"});
      const std::vector<int64_t> columns = columns_of(sections, size, team.index);
      size_t at = 0;
      for (int64_t token = 0; token < num_tokens * size; ++token) {
        for (const int64_t column : columns) {
          if (shared[at++] != byte_of(number, token, column))
            throw std::runtime_error(fmt::format("token {}, column {}", token, column));
        }
      }
      all_to_all.to_tokens(sections, DType::kBF16, num_tokens, shared.data(), back.data(), {"bytes"});
      if (back != own) throw std::runtime_error(fmt::format("all-to-all {} does not come back", number));
    }
    if (all_to_all.is_abandoned()) throw std::runtime_error("nobody wanted to abandon");
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Every reader multiplies its columns by a factor of its own before it gives them back, so that all sums are
// known exactly.
TEST_P(ContextAllToAllTest, AddsUpWhatSeveralReadersGiveBack) {
  const auto& [num_nodes, local_world_size, size] = GetParam();
  const auto errors = run_communicators(num_nodes, local_world_size, {}, [size = size](Communicator& comm) {
    const ContextTeam team = context_team(comm.world(), size);
    ThreadPool pool(2, CpuLimits());
    ContextAllToAll all_to_all(comm, team, 1 << 20, pool);
    for (int64_t readers = 1; readers <= size; ++readers) {
      if (size % readers != 0) continue;
      const int64_t num_tokens = 21, values = 300 * size / readers;
      const std::vector<RowSection> sections = {{4 * 3 * size}, {4 * values, readers}, {4 * values, readers}};
      const int64_t width = 3 * size + 2 * values;
      std::vector<float> own(static_cast<size_t>(num_tokens * width)), back = own;
      for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i % 4093 + team.index);
      std::vector<float> shared(static_cast<size_t>(num_tokens * size * 603));
      all_to_all.to_shares(sections, num_tokens, std::as_bytes(std::span(own)).data(),
                           std::as_writable_bytes(std::span(shared)).data(), {"values"});
      const auto factor = static_cast<float>(1 + team.index % readers);
      for (size_t i = 0; i < shared.size(); ++i) shared[i] *= i % 603 < 3 ? 1 : factor;
      all_to_all.to_tokens(sections, DType::kF32, num_tokens, std::as_bytes(std::span(shared)).data(),
                           std::as_writable_bytes(std::span(back)).data(), {"values"});
      const auto sum_of_factors = static_cast<float>(readers * (readers + 1) / 2);
      for (size_t i = 0; i < own.size(); ++i) {
        const bool is_shared = static_cast<int64_t>(i) % width >= 3 * size;
        if (back[i] != (is_shared ? sum_of_factors : 1) * own[i])
          throw std::runtime_error(
              fmt::format("{} readers: value {} is {} of {}", readers, i, back[i], own[i]));
      }
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// All members of a team know after the same all-to-all, and other teams do not.
TEST_P(ContextAllToAllTest, TellsTheTeamThatAMemberWantsToAbandon) {
  const auto& [num_nodes, local_world_size, size] = GetParam();
  const auto errors = run_communicators(num_nodes, local_world_size, {}, [size = size](Communicator& comm) {
    const ContextTeam team = context_team(comm.world(), size);
    ThreadPool pool(1, CpuLimits());
    ContextAllToAll all_to_all(comm, team, 4096, pool);
    const std::vector<RowSection> sections = {{8 * size}};
    std::vector<std::byte> own(static_cast<size_t>(8 * size)), shared = own;
    for (int64_t number = 0; number < 5; ++number) {
      if (number == 3 && comm.world().rank == 1) all_to_all.wish_to_abandon();
      all_to_all.to_shares(sections, 1, own.data(), shared.data(), {"bytes"});
      const bool is_in_team = comm.world().rank / size == 1 / size;
      if (all_to_all.is_abandoned() != (number >= 3 && is_in_team))
        throw std::runtime_error(fmt::format("all-to-all {}", number));
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace tessera
