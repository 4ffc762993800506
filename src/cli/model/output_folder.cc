#include "cli/model/output_folder.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace tessera {

namespace fs = std::filesystem;

void check_output(const fs::path& output, bool overwrite, const fs::path& input) {
  std::error_code error;
  if (fs::equivalent(output, input, error))
    fail(ExitCode::kUsage, "--output {}: is read; choose another", output.native());
  if (overwrite || !fs::exists(output, error)) return;
  if (fs::is_directory(output, error) && fs::is_empty(output, error)) return;
  fail(ExitCode::kUsage, "--output {}: exists; choose another, or give --overwrite", output.native());
}

}  // namespace tessera
