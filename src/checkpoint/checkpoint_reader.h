// Reads checkpoint-<step> for any number of ranks: only the byte ranges needed, each verified by its
// checksum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/run_state.h"
#include "model/parameters.h"
#include "weights/model_folder.h"

namespace tessera {

// A checkpoint whose sizes, headers, manifest and other text files say that it is complete.
class CheckpointReader {
 public:
  // Error(kNoInput) if there is none, kBadData if something is missing, damaged or of a different version;
  // each names file, field, expected and found.
  static CheckpointReader open(const std::filesystem::path& folder);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const std::filesystem::path& folder() const;
  int64_t step() const;
  int world_size() const;               // number of ranks that wrote it
  const std::string& run_json() const;  // RunRecord::run_json
  const std::string& program_version() const;
  DType model_dtype() const;  // of the model's files
  int64_t bytes() const;      // of all files
  int64_t num_files() const;

  // Passes the masters and the optimizer's state of `ranges` (ascending without overlap) to `sink`, in pieces
  // of bounded size, several at once. Beyond the ranges it reads only the rest of the pieces at their ends,
  // and whole matrices of whose values the optimizer has means. kBadData, naming the file, if the model's
  // parameters differ from the checkpoint's or a checksum is wrong; kBadConfig if one of `tensors` neither is
  // stored nor follows from what is.
  void load(const ParameterLayout& layout, StateTensors tensors, const std::vector<ElementRange>& ranges,
            const StateSink& sink, ThreadPool& pool,
            const std::function<void(const LoadProgress&)>& progress = {}) const;

  // Describes what load() converts or leaves out if another optimizer wrote the state: "exp_avg from F32 to
  // BF16 (rounded to 8 significant bits), without exp_avg_sq"; "" = nothing.
  std::string conversion_to(const ParameterLayout& layout, StateTensors tensors) const;

  // Whether it has values of a tensor of this name.
  bool has_state(std::string_view tensor) const;

  // Reads every byte and checks every checksum; kBadData names the first bad file.
  void verify(ThreadPool& pool, const std::function<void(const LoadProgress&)>& progress = {}) const;

 private:
  CheckpointReader();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CheckpointEntry {
  std::filesystem::path folder;
  int64_t step = 0;
  std::string problem;              // why it is unusable; "" = no problem found
  ExitCode code = ExitCode::kDone;  // for the problem
  // Only if there is no problem:
  int world_size = 0;
  int64_t bytes = 0;
  DType model_dtype = DType::kBF16;
};

// Describes one folder with any name.
CheckpointEntry describe_checkpoint(const std::filesystem::path& folder);

// Whether it has been deleted since, as a live run deletes checkpoints beyond save_total_limit.
bool is_deleted(const CheckpointEntry& entry);

// The checkpoints in an output folder, oldest first, without unfinished ones. Looks only at sizes, headers
// and text files.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& output_dir);

// The newest checkpoint without a problem before step `before`; warns about each one skipped, with the
// reason.
std::optional<CheckpointReader> open_newest_checkpoint(const std::filesystem::path& output_dir,
                                                       int64_t before = std::numeric_limits<int64_t>::max());

}  // namespace tessera
