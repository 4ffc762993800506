// Reads checkpoint-<step> for any number of ranks: byte ranges only, each verified by its checksum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/model_folder.h"
#include "checkpoint/run_state.h"
#include "model/parameters.h"

namespace tessera {

// A checkpoint that is complete as far as sizes, headers, the manifest and other texts tell.
class CheckpointReader {
 public:
  // Error(kNoInput) when there is none, kBadData when something is missing, damaged or of another version;
  // each names file, field, expected and found.
  static CheckpointReader open(const std::filesystem::path& folder);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const std::filesystem::path& folder() const;
  int64_t step() const;
  int world_size() const;               // of the ranks that wrote it
  const std::string& run_json() const;  // RunRecord::run_json
  const std::string& program_version() const;
  DType model_dtype() const;  // of the model's files
  int64_t bytes() const;      // of all files
  int64_t num_files() const;

  // Gives the masters and moments of `ranges` (ascending without overlap) to `sink`, pieces of bounded size,
  // several at once. Reads nothing else but the rest of the pieces at their ends. kBadData when the model's
  // parameters differ from those of the checkpoint, or a checksum is wrong: it names the file.
  void load(const ParameterLayout& layout, const std::vector<ElementRange>& ranges, const StateSink& sink,
            ThreadPool& pool, const std::function<void(const LoadProgress&)>& progress = {}) const;

  // Reads every byte and compares every checksum; kBadData names the first file that is wrong.
  void verify(ThreadPool& pool, const std::function<void(const LoadProgress&)>& progress = {}) const;

 private:
  CheckpointReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CheckpointEntry {
  std::filesystem::path folder;
  int64_t step = 0;
  std::string problem;              // why it cannot be used; "" = none found
  ExitCode code = ExitCode::kDone;  // of the problem
  // Where there is no problem:
  int world_size = 0;
  int64_t bytes = 0;
  DType model_dtype = DType::kBF16;
};

// One folder, whatever its name.
CheckpointEntry describe_checkpoint(const std::filesystem::path& folder);

// The checkpoints of an output folder, oldest first; what is unfinished is none. Only sizes, headers and
// texts are looked at.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& output_dir);

// The newest one without a problem among those before step `before`; each one that is passed over is a
// warning that says why.
std::optional<CheckpointReader> open_newest_checkpoint(const std::filesystem::path& output_dir,
                                                       int64_t before = std::numeric_limits<int64_t>::max());

}  // namespace tessera
