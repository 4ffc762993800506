// The training cases that PyTorch computed in float32, run through the command line.
#include <gtest/gtest.h>

#include "e2e/reference_case.h"
#include "e2e/tiny_model.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void run_case(const fs::path& folder, const std::string& output, const std::string& dtype) {
  const ReferenceShape shape = reference_shape(folder);
  std::vector<std::string> arguments = reference_arguments(folder, output, shape.batch, shape.accumulation);
  arguments.insert(arguments.end(), {"--dtype", dtype});
  run_well(arguments);
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    if (reference_cases().empty()) GTEST_SKIP() << "no reference cases in " << shared_folder() / "reference";
  }
  TemporaryFolder temporary_;
};

TEST_F(Golden, Float32TrainingEqualsPyTorch) {
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const std::string output = temporary_ / folder.filename().string();
    run_case(folder, output, "float32");
    expect_float32_reference(folder, output);
  }
}

TEST_F(Golden, Bfloat16LossesStayClose) {
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const std::string output = temporary_ / folder.filename().string();
    run_case(folder, output, "bfloat16");
    expect_bfloat16_reference(folder, output);
  }
}

}  // namespace
}  // namespace tessera
