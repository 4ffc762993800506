// The weights of a rank that trains alone. With a file, the decoder layers are in it, and a few of them in
// memory (layer_file.h). Embedding and head are always in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/memory.h"
#include "base/unique_fd.h"
#include "model/parameters.h"
#include "optim/state_file.h"
#include "shard/weights/layer_file.h"
#include "shard/weights/weight_window.h"
#include "tensor/tensor_view.h"

namespace tessera {

class StreamedWeights {
 public:
  // The layers go to rank-0.weights in `folder`, or without one are in memory. Weights start as zeros.
  StreamedWeights(const ParameterLayout& layout, DType dtype, const std::optional<StateFileSettings>& folder);

  // Where groups are when they are open, in elements; what shares a place is never open at once.
  TensorView memory() const { return memory_; }
  int64_t begin(int64_t group) const { return window_.begin[static_cast<size_t>(group)]; }
  bool is_in_file(int64_t group) const { return window_.file_begin[static_cast<size_t>(group)] >= 0; }

  // Returns once the group is at its place, and starts to read the next one in this direction. It stays until
  // the second group after it is opened.
  std::byte* open(int64_t group, bool forward);
  // The open group has new values.
  void updated(int64_t group);
  // Waits until the file has all updates.
  void finish_updates();

  // Transfers of the passes; staged elements take another way.
  AsyncFileStatistics statistics() const {
    return file_ ? file_->file().statistics() : AsyncFileStatistics();
  }

  // Copies up to kStagedElements elements of a group in the file, with no update unfinished, from the file to
  // staging_begin() of the memory, or from there to the file; one thread at a time. Groups that are opened
  // have what was written once written() has been called.
  int64_t staging_begin() const { return window_.staging_begin; }
  void stage(int64_t group, int64_t begin, int64_t count) const;
  void write_staged(int64_t group, int64_t begin, int64_t count);
  void written();
  // Where the file has such elements.
  FileBytes in_file(int64_t group, int64_t begin, int64_t count) const;

 private:
  std::span<std::byte> staged(int64_t count) const;
  int64_t file_offset(int64_t group, int64_t begin) const;

  const ParameterLayout* layout_;
  WeightWindow window_;
  PageBuffer buffer_;
  TensorView memory_;
  std::optional<LayerFile> file_;
  UniqueFd cached_fd_;  // the file through the page cache, for transfers of any alignment
};

}  // namespace tessera
