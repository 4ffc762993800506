// A checkpoint gives its state to other optimizers than the one that wrote it.
#include "checkpoint/state_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "expect_error.h"
#include "model/families/families.h"
#include "optim/adafactor.h"
#include "optim/elementwise.h"
#include "optim/muon.h"
#include "support/checkpoint_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kStateSeed = 5;

class StateConversion : public testing::Test {
 protected:
  TestCheckpoint checkpoint(StateTensors tensors, int world_size) const {
    TestCheckpoint result;
    result.output_dir = folder_.path();
    result.world_size = world_size;
    result.tensors = tensors;
    return result;
  }

  const TestFolder folder_;
  const ModelConfig config_ = checkpoint_test_config();
  const ParameterLayout layout_ = parameter_layout(config_);
};

// Moments of small integers, whose sums are exact.
TestState integer_moments(const ParameterLayout& layout, StateTensors tensors) {
  TestState state = random_state(layout, DType::kBF16, kStateSeed, tensors);
  for (const Parameter& parameter : layout.parameters()) {
    for (int64_t i = 0; i < parameter.num_elements; ++i) {
      const auto at = static_cast<size_t>(parameter.offset + i);
      for (size_t tensor = 0; tensor < tensors.size(); ++tensor)
        state.of(state_kind(tensor))[at] = static_cast<float>((i * 7 + i / 5) % 15 + 1);
    }
  }
  return state;
}

// AdamW's state as converted for Muon or Adafactor.
TestState converted(const ParameterLayout& layout, const TestState& adamw, StateTensors tensors) {
  TestState out = zero_state(layout, tensors);
  out.masters() = adamw.of(StateKind::kMaster);
  const auto& exp_avg = adamw.of(state_kind(0));
  const auto& exp_avg_sq = adamw.of(state_kind(1));
  for (const Parameter& parameter : layout.parameters()) {
    const ParameterShape shape = shape_of(parameter);
    const auto at = [&](int64_t i) { return static_cast<size_t>(parameter.offset + i); };
    const auto mean = [&](int64_t first, int64_t count, int64_t stride) {
      double sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(exp_avg_sq[at(first + i * stride)]);
      return static_cast<float>(sum / static_cast<double>(count));
    };
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const StateExtent extent = tensors[tensor].extent;
      std::vector<float>& values = out.of(state_kind(tensor));
      for (int64_t i = 0; i < num_values(extent, shape, parameter.num_elements); ++i) {
        if (extent == StateExtent::kRows) {
          values[at(i)] = mean(i * shape.columns, shape.columns, 1);
        } else if (extent == StateExtent::kColumns) {
          values[at(i)] = mean(i, shape.rows, shape.columns);
        } else {
          values[at(i)] = (tensors[tensor].name == "exp_avg_sq" ? exp_avg_sq : exp_avg)[at(i)];
        }
      }
    }
  }
  return out;
}

// The embedding is of several pieces, and on three ranks its moments are in several files.
TEST_F(StateConversion, GivesAdamWsStateToMuonAndAdafactor) {
  ModelConfig config = checkpoint_test_config();
  config.qkv_bias = config.mlp_bias = false;  // for codes
  const ParameterLayout layout = parameter_layout(config);
  const std::pair<StateTensors, const char*> targets[] = {
      {Muon::kStateTensors, "momentum_buffer from exp_avg, without exp_avg_sq of the layers' matrices"},
      {Adafactor::kStateTensors,
       "exp_avg_sq_row from means of exp_avg_sq, exp_avg_sq_col from means of exp_avg_sq, without exp_avg"}};
  for (const StateTensors written :
       {StateTensors(AdamW::kStateTensors), StateTensors(AdamW8Bit::kStateTensors)}) {
    const TestState state = integer_moments(layout, written);
    for (const int world_size : {1, 3}) {
      const fs::path path = write_checkpoint(checkpoint(written, world_size), config, layout, state);
      const CheckpointReader reader = CheckpointReader::open(path);
      const TestState stored = load_checkpoint(reader, layout, 1, written);  // codes round what they hold
      for (const auto& [tensors, text] : targets) {
        const TestState expected = converted(layout, stored, tensors);
        for (const int num_readers : {1, 30}) {
          EXPECT_TRUE(load_checkpoint(reader, layout, num_readers, tensors) == expected)
              << tensors.back().name << ", " << dtype_name(written[0].dtype) << ", " << world_size
              << " ranks, read by " << num_readers;
        }
        if (written.data() == AdamW::kStateTensors.data()) {
          EXPECT_EQ(reader.conversion_to(layout, tensors), text);
        }
      }
      fs::remove_all(path);
    }
  }
}

// The ranges hold some rows and columns of the embedding, and get the means of those.
TEST_F(StateConversion, RangesGetTheMeansOfTheirRowsAndColumns) {
  const TestState state = integer_moments(layout_, AdamW::kStateTensors);
  const CheckpointReader reader =
      CheckpointReader::open(write_checkpoint(checkpoint(AdamW::kStateTensors, 2), config_, layout_, state));
  const StateTensors tensors = Adafactor::kStateTensors;
  const TestState all = converted(layout_, state, tensors);
  const std::vector<ElementRange> ranges = {{3, 40}, {50, 300}};  // 33,003 rows, 72 columns
  ASSERT_EQ(layout_.parameters().front().shape, (std::vector<int64_t>{33003, 72}));
  TestState found = zero_state(layout_, tensors), expected = found;
  ThreadPool pool(2);
  reader.load(layout_, tensors, ranges, found.sink(), pool);
  for_each_state_kind(tensors.size(), [&](StateKind kind) {
    for (const ElementRange& range : ranges) {
      std::copy(all.of(kind).begin() + range.begin, all.of(kind).begin() + range.end,
                expected.of(kind).begin() + range.begin);
    }
  });
  EXPECT_TRUE(found == expected);
}

// Means are the same bits for any values, wherever the pieces end.
TEST(MatrixMeans, DoNotDependOnHowElementsAreDivided) {
  std::vector<float> values(7 * 13);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1 / (1 + static_cast<float>(i * i));
  MatrixMeans whole(7, 13);
  whole.add(values);
  for (const size_t step : {size_t{1}, size_t{5}, size_t{13}, size_t{20}}) {
    MatrixMeans means(7, 13);
    for (size_t i = 0; i < values.size(); i += step)
      means.add(std::span(values).subspan(i, std::min(step, values.size() - i)));
    EXPECT_EQ(means.of_rows(), whole.of_rows()) << step;
    EXPECT_EQ(means.of_columns(), whole.of_columns()) << step;
  }
}

TEST_F(StateConversion, RefusesAnOptimizerWhoseStateItLacks) {
  const ModelConfig config = tiny_checkpoint_config();
  const ParameterLayout layout = parameter_layout(config);
  const std::string matrix = "'model.layers.0.self_attn.q_proj.weight'";
  const auto refuse = [&](StateTensors written, StateTensors wanted, const std::vector<std::string>& parts) {
    const TestState state = random_state(layout, DType::kBF16, kStateSeed, written);
    const fs::path path = write_checkpoint(checkpoint(written, 2), config, layout, state);
    const CheckpointReader reader = CheckpointReader::open(path);
    std::vector<std::string> expected = parts;
    expected.push_back("or start a new run from its weights: --model " + path.native());
    expect_error(ExitCode::kBadConfig, expected, [&] { load_checkpoint(reader, layout, 1, wanted); });
    fs::remove_all(path);
  };
  refuse(Muon::kStateTensors, AdamW::kStateTensors,
         {"expected exp_avg, exp_avg_sq of " + matrix +
          " for the optimizer to be used, found momentum_buffer, "
          "from which exp_avg and exp_avg_sq cannot be computed; resume with --optim muon, or"});
  refuse(Muon::kStateTensors, Adafactor::kStateTensors,
         {"expected exp_avg_sq_row, exp_avg_sq_col of " + matrix, "; resume with --optim muon, or"});
  refuse(
      Lion::kStateTensors, AdamW::kStateTensors,
      {"found exp_avg, from which exp_avg_sq cannot be computed; resume with --optim lion_32bit, lion_8bit, "
       "or"});
  refuse(Lion::kStateTensors, Muon::kStateTensors, {"exp_avg_sq cannot be computed"});
  refuse(Lion::kStateTensors, Adafactor::kStateTensors, {"exp_avg_sq_row and exp_avg_sq_col cannot be"});
  for (const StateTensors wanted : {StateTensors(AdamW::kStateTensors), StateTensors(Lion::kStateTensors),
                                    StateTensors(Muon::kStateTensors)}) {
    refuse(Adafactor::kStateTensors, wanted,
           {"found exp_avg_sq_row, exp_avg_sq_col, from which",
            " cannot be computed; resume with --optim adafactor, or"});
  }
}

}  // namespace
}  // namespace tessera
