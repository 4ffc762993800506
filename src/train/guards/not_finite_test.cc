// The search for non-finite values. Ranks are threads, each with a whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "ops/cpu_ops.h"
#include "support/train/train_test_support.h"
#include "train/guards/not_finite.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int32_t kBadToken = 5;

// Rows of 9 tokens; only rows 2 and 6 have kBadToken, as their third token.
class NotFinite : public testing::Test {
 protected:
  NotFinite() {
    auto rows = random_rows(std::vector<int64_t>(8, 9), tiny_config().vocab_size, 3);
    for (TokenRow& row : rows) std::replace(row.ids.begin(), row.ids.end(), kBadToken, 6);
    for (const size_t bad : {2, 6}) rows[bad].ids[2] = kBadToken;
    write_token_rows(folder_ / "rows.safetensors", rows);
    weights_ = random_weights(parameter_layout(tiny_config()), 0.3f, 1);
  }

  void spoil(const std::string& parameter, int64_t index) {
    weights_[static_cast<size_t>(parameter_layout(tiny_config()).at(parameter).offset + index)] = NAN;
  }

  // The report of every rank for a step in which rank r reads the rows i with i % num_ranks == r.
  std::string search(int num_ranks, bool loss_is_finite = true, const std::string& gradient = "") {
    std::mutex mutex;
    std::set<std::string> said;
    run_ranks({1, num_ranks}, [&](Communicator& comm) {
      ThreadPool pool(1);
      DatasetOptions options;
      options.sources = {(folder_ / "rows.safetensors").string()};
      const Dataset dataset = Dataset::open(options, nullptr, tiny_config().vocab_size, pool);
      const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
      LlamaModel model(tiny_config(), DType::kF32, *ops);
      std::vector<float> weights = weights_;
      model.bind_parameters({weights.data(), DType::kF32, {std::ssize(weights)}}, {});
      model.reserve({.max_tokens = 9, .max_sequence_length = 9, .training = false});
      std::vector<int64_t> rows;
      for (int64_t row = comm.world().rank; row < dataset.num_rows(); row += num_ranks) rows.push_back(row);
      const bool is_last = comm.world().rank == num_ranks - 1;
      const std::string line = find_not_finite(
          model, dataset, {0, rows, loss_is_finite || !is_last, is_last ? gradient : ""}, comm, nullptr);
      const std::lock_guard lock(mutex);
      said.insert(line);
    });
    EXPECT_EQ(said.size(), 1u) << "ranks differ";
    return *said.begin();
  }

  TestFolder folder_;
  std::vector<float> weights_;
};

TEST_F(NotFinite, RowsAndTheFirstPartOfTheModelAreNamed) {
  spoil("model.embed_tokens.weight", kBadToken * tiny_config().hidden_size);
  EXPECT_THAT(search(1), AllOf(HasSubstr("rows 2, 6 (from 0)"), HasSubstr("first in embedding at token 2"),
                               Not(HasSubstr("rank"))));
}

TEST_F(NotFinite, SoIsTheRankThatReadThem) {
  spoil("model.embed_tokens.weight", kBadToken * tiny_config().hidden_size);
  EXPECT_THAT(search(3), HasSubstr("rank 0 on host"))
      << "rows 2 and 6 of ranks 2 and 0: the first rank reports";
  EXPECT_THAT(search(4), AllOf(HasSubstr("rank 2 on host"), HasSubstr("rows 2, 6 (from 0)")));
}

TEST_F(NotFinite, PartsOfLayersAreNamed) {
  spoil("model.layers.1.mlp.down_proj.weight", 0);
  EXPECT_THAT(search(1), AllOf(HasSubstr("rows 0, 1, 2"), HasSubstr("first in layer 1 mlp at token 0")));
  spoil("model.layers.0.self_attn.o_proj.weight", 0);
  EXPECT_THAT(search(2), HasSubstr("first in layer 0 attention at token 0"));
}

TEST_F(NotFinite, TheLossItselfMayBeTheFirst) {
  spoil("lm_head.weight", 0);
  EXPECT_THAT(search(1), HasSubstr("first in the loss itself"));
}

TEST_F(NotFinite, ALossThatDoesNotRepeatItselfPointsToTheMachine) {
  EXPECT_THAT(search(3, false), AllOf(HasSubstr("rank 2 on host"), HasSubstr("may be at fault")));
}

TEST_F(NotFinite, AGradientAloneIsNamed) {
  EXPECT_THAT(search(2, true, "model.norm.weight"),
              AllOf(HasSubstr("rank 1 on host"), HasSubstr("the gradient of model.norm.weight is not")));
}

TEST_F(NotFinite, NothingFoundIsSaid) { EXPECT_THAT(search(2), HasSubstr("a machine may be at fault")); }

}  // namespace
}  // namespace tessera
