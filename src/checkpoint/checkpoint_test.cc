// Checkpoints are written and read correctly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "base/float_types.h"
#include "checkpoint/checkpoint_files.h"
#include "expect_error.h"
#include "formats/json.h"
#include "model/families/families.h"
#include "optim/adafactor.h"
#include "optim/elementwise.h"
#include "optim/muon.h"
#include "optim/state_parts.h"
#include "support/checkpoint_test_support.h"
#include "support/momentum_sgd.h"
#include "test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSeed = 5;

class Checkpoint : public testing::Test {
 protected:
  TestCheckpoint checkpoint(DType dtype, int world_size, int64_t max_shard_bytes = 5'000'000'000) const {
    TestCheckpoint result;
    result.output_dir = folder_.path();
    result.world_size = world_size;
    result.export_options.save_dtype = dtype;
    result.export_options.max_shard_bytes = max_shard_bytes;
    return result;
  }

  const ModelConfig config_ = checkpoint_test_config();
  const ParameterLayout layout_ = parameter_layout(config_);
  const TestFolder folder_;
};

TEST_F(Checkpoint, ComesBackBitByBitForEveryTypeAndNumberOfRanks) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const TestState state = random_state(layout_, dtype, kSeed);
    for (const auto& [world_size, num_readers] :
         {std::pair(1, 3), std::pair(2, 1), std::pair(3, 4), std::pair(4, 2)}) {
      SCOPED_TRACE(fmt::format("{} {} ranks, read by {}", dtype_name(dtype), world_size, num_readers));
      const fs::path path = write_checkpoint(
          checkpoint(dtype, world_size, world_size == 3 ? 500'000 : 1 << 30), config_, layout_, state);
      const CheckpointReader reader = CheckpointReader::open(path);
      EXPECT_EQ(reader.step(), 10);
      EXPECT_EQ(reader.world_size(), world_size);
      EXPECT_EQ(parse_json(reader.run_json(), "run"), parse_json(test_record(10).run_json, "record"));
      EXPECT_TRUE(load_checkpoint(reader, layout_, num_readers) == state);
      ThreadPool pool(2);
      reader.verify(pool);
      fs::remove_all(path);
    }
  }
}

// More ranks than the small groups have parts: some own nothing.
TEST_F(Checkpoint, AnyNumberOfRanksReadsWhatAnyOtherWrote) {
  const ModelConfig config = tiny_checkpoint_config();
  const ParameterLayout layout = parameter_layout(config);
  const TestState state = random_state(layout, DType::kBF16, kSeed);
  for (int world_size = 1; world_size <= 7; ++world_size) {
    const fs::path path = write_checkpoint(checkpoint(DType::kBF16, world_size), config, layout, state);
    const CheckpointReader reader = CheckpointReader::open(path);
    for (int num_readers = 1; num_readers <= 7; ++num_readers) {
      EXPECT_TRUE(load_checkpoint(reader, layout, num_readers) == state)
          << world_size << " ranks, read by " << num_readers;
    }
    fs::remove_all(path);
  }
}

// Parameters that the model's files have as slices of one tensor.
TEST_F(Checkpoint, HoldsSlicesOfTensors) {
  ModelConfig config = tiny_checkpoint_config();
  config.family = "gpt_oss";
  config.experts = {3, 2, 20, true, 0, {}, ClampedSwiglu{}};
  config.experts->layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
  const ParameterLayout layout = parameter_layout(config);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const TestState state = random_state(layout, dtype, kSeed);
    for (const int world_size : {1, 3}) {
      const fs::path path = write_checkpoint(checkpoint(dtype, world_size), config, layout, state);
      const CheckpointReader reader = CheckpointReader::open(path);
      for (const int num_readers : {1, 2}) {
        EXPECT_TRUE(load_checkpoint(reader, layout, num_readers) == state)
            << dtype_name(dtype) << ", " << world_size << " ranks, read by " << num_readers;
      }
      fs::remove_all(path);
    }
  }
}

TEST_F(Checkpoint, HoldsTheStateOfAnyOptimizer) {
  const ModelConfig config = tiny_checkpoint_config();
  const ParameterLayout layout = parameter_layout(config);
  const StateTensor two[] = {{"a", DType::kBF16}, {"b"}};
  const StateTensor codes[] = {{"a", DType::kI8}, {"b", DType::kU8}};
  const StateTensors cases[] = {{}, MomentumSgd::kStateTensors, two, codes};
  for (const StateTensors tensors : cases) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      SCOPED_TRACE(fmt::format("{} tensors, {}", tensors.size(), dtype_name(dtype)));
      TestCheckpoint test = checkpoint(dtype, 3);
      test.tensors = tensors;
      const TestState state = random_state(layout, dtype, kSeed, tensors);
      const fs::path path = write_checkpoint(test, config, layout, state);
      const CheckpointReader reader = CheckpointReader::open(path);
      EXPECT_TRUE(load_checkpoint(reader, layout, 2, tensors) == state);
      expect_error(ExitCode::kBadConfig, {path.native(), "optimizer state: expected exp_avg, exp_avg_sq"},
                   [&] { load_checkpoint(reader, layout); });
      fs::remove_all(path);
    }
  }
}

// A matrix of several pieces has momentum for all of its elements, or means of its rows and columns.
TEST_F(Checkpoint, HoldsStateOfWholeParameters) {
  for (const StateTensors tensors :
       {StateTensors(Muon::kStateTensors), StateTensors(Adafactor::kStateTensors)}) {
    const TestState state = random_state(layout_, DType::kBF16, kSeed, tensors);
    for (const int world_size : {1, 3}) {
      TestCheckpoint test = checkpoint(DType::kBF16, world_size);
      test.tensors = tensors;
      const fs::path path = write_checkpoint(test, config_, layout_, state);
      const CheckpointReader reader = CheckpointReader::open(path);
      for (const int num_readers : {1, 2, 30}) {
        EXPECT_TRUE(load_checkpoint(reader, layout_, num_readers, tensors) == state)
            << tensors.back().name << ", " << world_size << " ranks, read by " << num_readers;
      }
      EXPECT_EQ(reader.conversion_to(layout_, tensors), "");
      fs::remove_all(path);
    }
  }
}

// So that the file system can share whole pages of one with the other.
TEST_F(Checkpoint, StateFilesBeginInPagesAsFilesOfTheRunDo) {
  ModelConfig config = preset_config("15m");  // its parameters follow one another without gaps
  config.vocab_size = 1013;
  const ParameterLayout layout = parameter_layout(config);
  std::vector<ParameterRange> ranges;
  for (const Parameter& parameter : layout.parameters()) {
    ranges.push_back({.begin = parameter.offset,
                      .count = parameter.num_elements,
                      .weight_decay = false,
                      .shape = shape_of(parameter)});
  }
  const ValueCounts counts(layout.num_elements(), ranges);
  const StateTensor mixed[] = {{"a", DType::kU8}, {"b", DType::kBF16}, {"c"}, {"d", DType::kI8}};
  int64_t num_inside_pages = 0;
  for (const StateTensors tensors :
       {StateTensors(AdamW::kStateTensors), StateTensors(mixed), StateTensors(Muon::kStateTensors)}) {
    const StoredParts stored(DType::kBF16, tensors);
    const SafetensorsLayout file =
        state_file_layout(owned_parts(layout, {{0, layout.num_elements()}}), stored);
    EXPECT_EQ(file.header().size() % kSharedPageBytes, 0);
    for (const FileParts& parts : file_parts(tensors, DType::kBF16, counts, 0)) {
      for (size_t i = 0; i < parts.parts.size(); ++i) {
        const bool is_remainder = parts.parts[i] == tensors.size();
        const size_t part = is_remainder ? StoredParts::kMaster : StoredParts::kFirstTensor + parts.parts[i];
        const int64_t phase_bytes = parts.in_file[i].phase_bytes;
        int64_t position = 0;
        for (const Parameter& parameter : layout.parameters()) {
          const int64_t count = stored.num_stored(part, parameter, 0, parameter.num_elements);
          if (count == 0) continue;
          const SafetensorsEntry* entry = file.find(stored.tensor_name(part, parameter.name));
          ASSERT_NE(entry, nullptr);
          const int64_t in_run = phase_bytes + stored.bytes(part, position);
          EXPECT_EQ((entry->offset_bytes - in_run) % kSharedPageBytes, 0) << entry->name;
          position += count;
        }
        num_inside_pages += phase_bytes > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_inside_pages, 3);
}

// Pieces of many blocks, more ranks than blocks in some parameters, and ranges that begin within a block.
TEST_F(Checkpoint, StateInCodesIsReadByAnyNumberOfRanksAndAnyRanges) {
  ModelConfig config = checkpoint_test_config();
  config.qkv_bias = config.mlp_bias = false;  // their parts do not begin at multiples of 32
  const ParameterLayout layout = parameter_layout(config);
  const StateTensors codes = AdamW8Bit::kStateTensors;
  const TestState state = random_state(layout, DType::kBF16, kSeed, codes);
  for (const int world_size : {1, 3}) {
    TestCheckpoint test = checkpoint(DType::kBF16, world_size);
    test.tensors = codes;
    const fs::path path = write_checkpoint(test, config, layout, state);
    const CheckpointReader reader = CheckpointReader::open(path);
    for (const int num_readers : {1, 7}) {
      EXPECT_TRUE(load_checkpoint(reader, layout, num_readers, codes) == state)
          << world_size << " ranks, read by " << num_readers;
    }
    // Other forms of the optimizer get the values.
    const TestState whole = load_checkpoint(reader, layout, 2);
    EXPECT_EQ(reader.conversion_to(layout, AdamW::kStateTensors),
              "exp_avg from I8 to F32 (exactly), exp_avg_sq from U8 to F32 (exactly)");
    EXPECT_TRUE(whole.arrays == state.arrays);
    TestState found = zero_state(layout, codes), expected = found;
    const std::vector<ElementRange> ranges = {{3, 5}, {1000, 300'001}, {1'048'575, 1'048'578}};
    ThreadPool pool(2);
    reader.load(layout, codes, ranges, found.sink(), pool);
    for_each_state_kind(codes.size(), [&](StateKind kind) {
      for (const ElementRange& range : ranges) {
        std::copy(state.of(kind).begin() + range.begin, state.of(kind).begin() + range.end,
                  expected.of(kind).begin() + range.begin);
      }
    });
    EXPECT_TRUE(found == expected);
    fs::remove_all(path);
  }
}

// Arbitrary ranges: elements outside them stay as they were.
TEST_F(Checkpoint, RangesReadTheirElementsAndLittleElse) {
  const TestState state = random_state(layout_, DType::kBF16, kSeed);
  const CheckpointReader reader =
      CheckpointReader::open(write_checkpoint(checkpoint(DType::kBF16, 3), config_, layout_, state));
  const int64_t count = layout_.num_elements();
  const std::vector<ElementRange> ranges = {{0, 5}, {5, 5}, {1'048'575, 1'048'578}, {count - 3000, count}};
  TestState found = zero_state(layout_);
  ThreadPool pool(2);
  int64_t num_bytes = 0;
  reader.load(layout_, AdamW::kStateTensors, ranges, found.sink(), pool,
              [&](const LoadProgress& progress) { num_bytes = progress.bytes_total; });
  TestState expected = zero_state(layout_);
  for_each_state_kind(state.tensors.size(), [&](StateKind kind) {
    for (const ElementRange& range : ranges) {
      std::copy(state.of(kind).begin() + range.begin, state.of(kind).begin() + range.end,
                expected.of(kind).begin() + range.begin);
    }
  });
  EXPECT_TRUE(found == expected);
  // Some pieces of the embedding, at the end of a rank's share, and in the last layer.
  EXPECT_LT(num_bytes, 12 * 3 * kParameterPieceElements);
  EXPECT_GT(num_bytes, 0);
}

// The model files are the same as an export's, and load_weights reads them.
TEST_F(Checkpoint, HoldsAModelAsExported) {
  TestState state = random_state(layout_, DType::kBF16, kSeed);
  // Some in the middle of two BF16 values; alignment gaps are zero.
  for (size_t i = 0; i < state.masters().size(); i += 5) {
    if (state.masters()[i] == 0) continue;
    const auto middle =
        std::bit_cast<float>((std::bit_cast<uint32_t>(state.masters()[i]) & 0xFFFF0000u) | 0x8000u);
    if (std::isfinite(to_float(master_weight(middle)))) state.masters()[i] = middle;
  }
  const TestFolder tokenizer, exported;
  tokenizer.write("tokenizer.json", "{\"a\": 1}");
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t max_shard_bytes : {int64_t{1} << 40, int64_t{500'000}}) {
      TestCheckpoint test = checkpoint(dtype, 2, max_shard_bytes);
      test.export_options.tokenizer_folder = tokenizer.path();
      const fs::path path = write_checkpoint(test, config_, layout_, state);
      export_model_folder(
          exported.path(), config_, layout_,
          [&](int64_t begin, std::span<float> values) { state.source()(StateKind::kMaster, begin, values); },
          test.export_options);
      int64_t num_files = 0;
      for (const auto& file : fs::directory_iterator(exported.path())) {
        const std::string name = file.path().filename().native();
        EXPECT_TRUE(read_text_file(file.path()) == read_text_file(path / name)) << name;
        ++num_files;
      }
      EXPECT_GE(num_files, 4);
      std::vector<float> weights(state.masters().size());
      ThreadPool pool(2);
      load_weights(
          SafetensorsModel::open(path), read_model_config(path), layout_,
          [&](int64_t begin, std::span<const float> values) {
            std::copy(values.begin(), values.end(), weights.begin() + begin);
          },
          pool);
      std::vector<float> expected = state.masters();
      if (dtype == DType::kBF16) {
        for (float& master : expected) master = to_float(master_weight(master));
      }
      EXPECT_TRUE(weights == expected);
      fs::remove_all(path);
      for (const auto& file : fs::directory_iterator(exported.path())) fs::remove(file.path());
    }
  }
}

TEST_F(Checkpoint, HoldsTheseFiles) {
  const fs::path path = write_checkpoint(checkpoint(DType::kBF16, 2), config_, layout_, zero_state(layout_));
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    names.insert(fs::relative(entry.path(), path).native());
  }
  EXPECT_EQ(names,
            (std::set<std::string>{
                "config.json", "generation_config.json", "model.safetensors", "tessera",
                "tessera/manifest.json", "tessera/state-00001-of-00002.json",
                "tessera/state-00001-of-00002.safetensors", "tessera/state-00002-of-00002.json",
                "tessera/state-00002-of-00002.safetensors", "trainer_state.json", "training_args.json"}));
  EXPECT_EQ(read_text_file(folder_ / "latest"), "checkpoint-10\n");
  EXPECT_EQ(read_text_file(path / "training_args.json"), test_record(10).training_args_json);
}

// State that changes step by step while it is written.
class ChangingState {
 public:
  explicit ChangingState(TestState state) : state_(std::move(state)) {}
  TestState& state() { return state_; }

  // Sets every value in the range to one.
  void change(ElementRange range) {
    for (std::vector<float>& values : state_.arrays) {
      std::fill(values.begin() + range.begin, values.begin() + range.end, 1.0f);
    }
  }

 private:
  TestState state_;
};

TEST_F(Checkpoint, IsOfTheMomentItWasBegunWhateverChangesMeanwhile) {
  const TestState before = random_state(layout_, DType::kBF16, kSeed);
  const int64_t piece_bytes = 12 * kParameterPieceElements;
  for (const int64_t snapshot_bytes :
       {int64_t{0}, int64_t{1'000'000}, piece_bytes + 4096, int64_t{1} << 30}) {
    for (const bool ascending : {true, false}) {
      SCOPED_TRACE(fmt::format("snapshot of {} bytes, ascending {}", snapshot_bytes, ascending));
      ChangingState changing(before);
      TestCheckpoint test = checkpoint(DType::kBF16, 1);
      create_checkpoint(test.plan(config_, layout_));
      ThreadPool pool(2);
      WriteOptions options;
      options.snapshot_bytes = snapshot_bytes;
      CheckpointWriter writer(test.plan(config_, layout_), everything(layout_), changing.state().source(),
                              options, pool);
      const int64_t count = layout_.num_elements();
      constexpr int64_t kChange = 300'000;
      for (int64_t i = 0; i < count; i += kChange) {
        const int64_t begin = ascending ? i : std::max<int64_t>(0, count - i - kChange);
        const ElementRange range = {begin, ascending ? std::min(count, i + kChange) : count - i};
        writer.before_change(range);
        changing.change(range);
      }
      writer.wait();
      EXPECT_TRUE(writer.finished());
      EXPECT_EQ(writer.report().bytes, 12 * layout_.num_parameters());
      EXPECT_GT(writer.report().stall_s, 0);
      commit_checkpoint(test.plan(config_, layout_), test_record(test.step));
      const CheckpointReader reader = CheckpointReader::open(test.plan(config_, layout_).folder);
      EXPECT_TRUE(load_checkpoint(reader, layout_) == before);
      fs::remove_all(reader.folder());
    }
  }
}

TEST_F(Checkpoint, WithMemoryForAllOfItNobodyWaitsForTheWriter) {
  const TestState before = random_state(layout_, DType::kF32, kSeed);
  ChangingState changing(before);
  TestCheckpoint test = checkpoint(DType::kF32, 1);
  create_checkpoint(test.plan(config_, layout_));
  ThreadPool pool(2);
  WriteOptions options;
  options.snapshot_bytes = int64_t{64} << 20;
  options.max_bytes_per_second = 1'000'000;  // half a minute for everything
  CheckpointWriter writer(test.plan(config_, layout_), everything(layout_), changing.state().source(),
                          options, pool);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const ElementRange upper = {layout_.groups()[1].begin, layout_.num_elements()};
  writer.before_change(upper);
  changing.change(upper);
  EXPECT_FALSE(writer.finished());
  EXPECT_LT(writer.report().bytes, 13 * kParameterPieceElements);
  writer.wait();  // lifts the limit
  EXPECT_LT(writer.report().write_s, 15);
  commit_checkpoint(test.plan(config_, layout_), test_record(test.step));
  EXPECT_TRUE(load_checkpoint(CheckpointReader::open(test.plan(config_, layout_).folder), layout_) == before);
}

TEST_F(Checkpoint, AWriterThatIsDestroyedLeavesNothingBehindAfterAbandon) {
  const TestState state = random_state(layout_, DType::kBF16, kSeed);
  const CheckpointPlan plan = checkpoint(DType::kBF16, 1).plan(config_, layout_);
  create_checkpoint(plan);
  {
    ThreadPool pool(1);
    WriteOptions options;
    options.max_bytes_per_second = 1'000'000;
    CheckpointWriter writer(plan, everything(layout_), state.source(), options, pool);
  }
  EXPECT_TRUE(fs::exists(plan.unfinished_folder()));
  EXPECT_FALSE(fs::exists(plan.unfinished_folder() / state_index_name(0, 1)));
  EXPECT_TRUE(list_checkpoints(folder_.path()).empty());
  EXPECT_FALSE(open_newest_checkpoint(folder_.path()).has_value());
  abandon_checkpoint(plan);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Checkpoint, RefusesWeightsThatTheModelsTypeCannotHold) {
  const TestState good = random_state(layout_, DType::kF16, kSeed);
  const Parameter& parameter = layout_.at("model.norm.weight");
  for (const auto& [dtype, value] : {std::pair(DType::kF16, 70000.0f), std::pair(DType::kF32, std::nanf("")),
                                     std::pair(DType::kBF16, std::numeric_limits<float>::max())}) {
    TestState state = good;
    state.masters()[static_cast<size_t>(parameter.offset + 5)] = value;
    expect_error(ExitCode::kNumerics,
                 {"tensor 'model.norm.weight': element 5", std::string(dtype_name(dtype))},
                 [&, type = dtype] { write_checkpoint(checkpoint(type, 2), config_, layout_, state); });
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
}

TEST_F(Checkpoint, OneOfTheSameNameIsMovedAside) {
  const TestState first = random_state(layout_, DType::kBF16, 1);
  const TestState second = random_state(layout_, DType::kBF16, 2);
  const fs::path path = write_checkpoint(checkpoint(DType::kBF16, 2), config_, layout_, first);
  write_checkpoint(checkpoint(DType::kBF16, 1), config_, layout_, second);
  EXPECT_TRUE(load_checkpoint(CheckpointReader::open(path), layout_) == second);
  EXPECT_TRUE(load_checkpoint(CheckpointReader::open(folder_ / "previous-1/checkpoint-10"), layout_) ==
              first);
  EXPECT_EQ(list_checkpoints(folder_.path()).size(), 1u);
}

TEST_F(Checkpoint, TheNewestWithoutAProblemIsFound) {
  const TestState state = random_state(layout_, DType::kBF16, kSeed);
  EXPECT_TRUE(list_checkpoints(folder_ / "none").empty());
  TestCheckpoint test = checkpoint(DType::kBF16, 2);
  for (const int64_t step : {5, 20, 100}) {
    test.step = step;
    write_checkpoint(test, config_, layout_, state);
  }
  fs::create_directory(folder_ / "checkpoint-200");
  fs::copy(folder_ / "checkpoint-20", folder_ / "checkpoint-30", fs::copy_options::recursive);
  fs::resize_file(folder_ / "checkpoint-100" / state_file_name(1, 2), 100);
  for (const char* name :
       {"checkpoint-", "checkpoint-007", "checkpoint--1", "checkpoint-1x", "a-checkpoint-1"}) {
    fs::create_directory(folder_ / name);
  }
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder_.path());
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].problem, "");
  EXPECT_EQ(entries[1].problem, "");
  EXPECT_NE(entries[2].problem.find("expected 30 as the folder's name says, found 20"), std::string::npos);
  EXPECT_NE(entries[3].problem.find(state_file_name(1, 2)), std::string::npos);
  EXPECT_NE(entries[4].problem.find("not found"), std::string::npos);
  const auto newest = open_newest_checkpoint(folder_.path());
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step(), 20);
}

}  // namespace
}  // namespace tessera
