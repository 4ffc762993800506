// The files of a checkpoint: their names and their layout.
// docs/checkpoint-format.md specifies them for other programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/run_state.h"
#include "formats/safetensors/safetensors_layout.h"
#include "model/parameters.h"
#include "weights/model_folder.h"
#include "weights/parameter_pieces.h"

namespace tessera {

inline constexpr const char* kStateFolder = "tessera";
inline constexpr const char* kManifestName = "tessera/manifest.json";
inline constexpr const char* kLatestName = "latest";
inline constexpr const char* kTrainerStateName = "trainer_state.json";
// Prefix of incomplete checkpoints in an output folder.
inline constexpr std::string_view kUnfinishedPrefix = ".unfinished-";

std::string checkpoint_name(int64_t step);                            // "checkpoint-100"
std::optional<int64_t> parse_checkpoint_name(std::string_view name);  // nullopt for any other name
// Creates previous-N in an output folder, with the next free N. Error(kIoError).
std::filesystem::path make_previous_folder(const std::filesystem::path& output_dir);
std::string state_file_name(int64_t rank, int64_t world_size);   // "tessera/state-00001-of-00004.safetensors"
std::string state_index_name(int64_t rank, int64_t world_size);  // "tessera/state-00001-of-00004.json"

// The values stored per element, in this order: the value in the model's files, its remainder to the float32
// master weight, and the tensors of the optimizer's state.
class StoredParts {
 public:
  static constexpr size_t kModel = 0;
  static constexpr size_t kMaster = 1;
  static constexpr size_t kFirstTensor = 2;
  static constexpr size_t kMaxCount = kFirstTensor + kMaxStateTensors;

  // The kind of values in a part. For the master the files hold its remainder or all of it.
  static StateKind kind(size_t part) {
    return part == kMaster ? StateKind::kMaster : state_kind(part - kFirstTensor);
  }

  // For model files of this type, F32, BF16 or F16.
  StoredParts(DType model_dtype, StateTensors tensors);

  DType model_dtype() const { return model_dtype_; }
  size_t count() const { return parts_.size(); }
  size_t num_tensors() const { return parts_.size() - kFirstTensor; }
  // nullopt if the part does not exist. kMaster is
  //   with a model in F32:   nothing, the model has the masters
  //   with a model in BF16:  I16, the remainder of master_remainder() (base/float_types.h)
  //   with a model in F16:   F32, the master itself
  std::optional<DType> dtype(size_t part) const { return parts_[part].dtype; }
  // Bytes of the first `count` elements (state_bytes()).
  int64_t bytes(size_t part, int64_t count) const {
    return parts_[part].dtype ? state_bytes(*parts_[part].dtype, count) : 0;
  }
  // The number of elements in [begin, begin + count) of the parameter with a value in the part: the first.
  int64_t num_stored(size_t part, const Parameter& parameter, int64_t begin, int64_t count) const;
  // The name of the tensor of the optimizer's state, "exp_avg"; from kFirstTensor on.
  const std::string& prefix(size_t part) const { return parts_[part].prefix; }
  // In a state file: "remainder/", "master/" or the optimizer's name of the tensor, as in "exp_avg/", before
  // the parameter's name.
  std::string tensor_name(size_t part, std::string_view parameter) const;
  // The part with the tensor of this name, in whatever type.
  std::optional<size_t> find(std::string_view tensor) const;

 private:
  struct Part {
    std::string prefix;
    std::optional<DType> dtype;
    StateExtent extent = StateExtent::kElements;
  };
  DType model_dtype_;
  std::vector<Part> parts_;
};

// Bytes of all parts of these elements.
int64_t stored_bytes(const ParameterLayout& layout, const std::vector<ElementRange>& ranges,
                     const StoredParts& stored);
// The shape of `count` elements of a tensor in a state file: [count], or [blocks, bytes of a block].
std::vector<int64_t> stored_shape(DType dtype, int64_t count);
// Part by part, each in the order of the elements, from a page on: as files of optimizer state have them, up
// to whole pages (FileParts), so that a checkpoint can share their space.
SafetensorsLayout state_file_layout(const std::vector<OwnedPart>& parts, const StoredParts& stored);

}  // namespace tessera
