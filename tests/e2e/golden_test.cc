// The training cases computed by PyTorch in float32, run through the command line.
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

TEST(Golden, Float32TrainingEqualsPyTorch) {
  const TemporaryFolder temporary;
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const std::string output = temporary / folder.filename().string();
    run_case(folder, output, "float32");
    expect_float32_reference(folder, output);
  }
}

TEST(Golden, Bfloat16LossesStayClose) {
  const TemporaryFolder temporary;
  for (const fs::path& folder : reference_cases()) {
    SCOPED_TRACE(folder.filename());
    const std::string output = temporary / folder.filename().string();
    run_case(folder, output, "bfloat16");
    expect_bfloat16_reference(folder, output);
  }
}

}  // namespace
}  // namespace tessera
