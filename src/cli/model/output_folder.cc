#include "cli/model/output_folder.h"

#include <system_error>
#include <utility>

#include "base/error.h"

namespace tessera {

namespace fs = std::filesystem;

void declare_output_flags(FlagTable* table, std::string* output, bool* overwrite, std::string help) {
  Flag& flag = table->add("output", output, std::move(help));
  flag.aliases = {"output_dir", "outfile"};
  flag.value_name = "PATH";
  flag.required = true;
  table->add("overwrite", overwrite, "Replace an output that exists.");
}

void check_output(const fs::path& output, bool overwrite, const fs::path& input) {
  std::error_code error;
  if (fs::equivalent(output, input, error))
    fail(ExitCode::kUsage, "--output {}: is read; choose another", output.native());
  if (overwrite || !fs::exists(output, error)) return;
  if (fs::is_directory(output, error) && fs::is_empty(output, error)) return;
  fail(ExitCode::kUsage, "--output {}: exists; choose another, or give --overwrite", output.native());
}

}  // namespace tessera
