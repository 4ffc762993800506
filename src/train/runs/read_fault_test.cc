// A disk that fails while a run reads its files: one error line that names the file, and no run with wrong
// data.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "expect_error.h"
#include "read_faults.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Makes each read of the file in turn the first to fail.
void expect_every_fault_to_be_told(const fs::path& file, const std::function<void()>& action) {
  int num_reads = 0;
  {
    const ReadFaults counting(file, INT_MAX);
    action();
    num_reads = counting.num_reads();
  }
  ASSERT_GT(num_reads, 0) << file << " is not read";
  for (int first = 0; first < num_reads; ++first) {
    SCOPED_TRACE(fmt::format("read {} of {} of {}", first + 1, num_reads, file.string()));
    const ReadFaults faults(file, first);
    expect_error(ExitCode::kIoError, {file.string(), "Input/output error"}, action);
  }
}

class ReadFault : public testing::Test {
 protected:
  ReadFault() {
    run_.spec.batch.max_steps = 2;
    run_.spec.saving.strategy = SaveStrategy::kSteps;
    run_.spec.saving.steps = 1;
    run_.spec.data.eval_dataset = {run_.folder() / "eval.safetensors"};
    run_.spec.evaluation.strategy = IntervalStrategy::kSteps;
    run_.spec.evaluation.steps = 2;
  }
  void train() {
    fs::remove_all(run_.output());
    fs::remove_all(run_.folder() / "cache");
    run_.train(1);
  }

  TinyRun run_;
};

TEST_F(ReadFault, OfTheModelEndsTheRun) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    expect_every_fault_to_be_told(fs::path(run_.spec.model.folder) / name, [this] { train(); });
  }
}

TEST_F(ReadFault, OfTheDatasetsEndsTheRun) {
  for (const std::string& file : {run_.spec.data.dataset[0], run_.spec.data.eval_dataset[0]}) {
    expect_every_fault_to_be_told(file, [this] { train(); });
  }
}

// For a checkpoint requested by name there is no fallback.
TEST_F(ReadFault, OfACheckpointAskedForEndsTheRun) {
  run_.train(1);
  const fs::path checkpoint = run_.output() / "checkpoint-1";
  run_.spec.resume = parse_resume(checkpoint);
  run_.spec.output_dir = run_.folder() / "resumed";
  for (const char* name : {"tessera/manifest.json", "tessera/state-00001-of-00001.json",
                           "tessera/state-00001-of-00001.safetensors", "model.safetensors"}) {
    expect_every_fault_to_be_told(checkpoint / name, [this] {
      fs::remove_all(run_.output());
      run_.train(1);
    });
  }
}

}  // namespace
}  // namespace tessera
