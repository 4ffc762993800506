// Test support: a model's state and checkpoints of it, written by ranks that are threads.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "optim/elementwise.h"

namespace tessera {

// Masters and optimizer state of every element.
struct TestState {
  StateTensors tensors;
  std::vector<std::vector<float>> arrays;  // by StateKind

  std::vector<float>& of(StateKind kind) { return arrays[static_cast<size_t>(kind)]; }
  const std::vector<float>& of(StateKind kind) const { return arrays[static_cast<size_t>(kind)]; }
  std::vector<float>& masters() { return of(StateKind::kMaster); }
  StateSource source() const;
  StateSink sink();
  bool operator==(const TestState& other) const;  // bitwise
};

// All kinds of parameters with sizes that are not powers of two; the embedding spans several pieces.
ModelConfig checkpoint_test_config();
// A few KiB of state, so that writing thousands of folders takes seconds.
ModelConfig tiny_checkpoint_config();
// Random bit patterns that are finite when saved in `dtype`, including subnormals, negative zeros and ties;
// zero where there is no parameter or no value. Tensors in codes get values that the codes keep.
TestState random_state(const ParameterLayout& layout, DType dtype, uint64_t seed,
                       StateTensors tensors = AdamW::kStateTensors);
TestState zero_state(const ParameterLayout& layout, StateTensors tensors = AdamW::kStateTensors);

// The elements of `rank`: a share of every parameter group, as in shard/layout/shard_plan.h; or whole
// parameters, in turn, if the optimizer needs them.
std::vector<ElementRange> test_shard(const ParameterLayout& layout, int rank, int world_size,
                                     StateTensors tensors = AdamW::kStateTensors);
std::vector<ElementRange> everything(const ParameterLayout& layout);

struct TestCheckpoint {
  std::filesystem::path output_dir;
  int64_t step = 10;
  int world_size = 1;
  StateTensors tensors = AdamW::kStateTensors;
  ExportOptions export_options = {};
  WriteOptions write_options = {};

  CheckpointPlan plan(const ModelConfig& config, const ParameterLayout& layout, int rank = 0) const;
};
RunRecord test_record(int64_t step);
// Writes with one thread per rank, then commits; returns the folder.
std::filesystem::path write_checkpoint(const TestCheckpoint& checkpoint, const ModelConfig& config,
                                       const ParameterLayout& layout, const TestState& state);
// Loads as `num_readers` ranks would.
TestState load_checkpoint(const CheckpointReader& reader, const ParameterLayout& layout, int num_readers = 1,
                          StateTensors tensors = AdamW::kStateTensors);

}  // namespace tessera
