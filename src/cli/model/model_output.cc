#include "cli/model/model_output.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"

namespace tessera {

namespace fs = std::filesystem;

void ModelOutput::check(const std::string& output, const std::vector<std::string>& inputs) const {
  std::error_code error;
  for (const std::vector<std::string>* read : {&inputs, &adapters}) {
    for (const std::string& input : *read) {
      if (fs::equivalent(output, input, error))
        fail(ExitCode::kUsage, "--output {}: is read; choose another", output);
    }
  }
  if (overwrite || !fs::exists(output, error)) return;
  if (fs::is_directory(output, error) && fs::is_empty(output, error)) return;
  fail(ExitCode::kUsage,
       "--output {}: exists and is not an empty folder; choose another, or give --overwrite", output);
}

DType ModelOutput::write(const std::vector<std::string>& models, MergeOptions options) const {
  options.save_dtype = dtype ? *dtype : weights_dtype(models.front());
  options.max_shard_bytes = max_shard_bytes.value_or(options.max_shard_bytes);
  options.adapters.assign(adapters.begin(), adapters.end());
  StatusLine status;
  options.progress = [&](double fraction) { status.show("writing " + folder, fraction); };
  ThreadPool pool(threads_for_pool(0));
  merge_models({models.begin(), models.end()}, options, folder, pool);
  return options.save_dtype;
}

}  // namespace tessera
