// The weights of a rank that trains alone, with the decoder layers in a file and a few of them in memory
// (layer_file.h). Embedding and head are always in memory.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>

#include "base/memory.h"
#include "base/unique_fd.h"
#include "model/parameters.h"
#include "optim/state_file.h"
#include "platform/thread_pool.h"
#include "shard/layout/weight_window.h"
#include "shard/weights/layer_file.h"
#include "shard/weights/weight_place.h"
#include "tensor/tensor_view.h"

namespace tessera {

class StreamedWeights final : public WeightPlace {
 public:
  // The layers go to rank-0.weights in `folder`. Weights start as zeros.
  StreamedWeights(const ParameterLayout& layout, DType dtype, const StateFileSettings& folder,
                  ThreadPool& pool);

  // Starts to read the next group in this direction. A group stays until the second group after it is opened.
  std::byte* open(int64_t group, WeightUse use) override;
  std::vector<std::span<std::byte>> opened_memory() const override { return {buffer_.as<std::byte>()}; }
  // Where groups are when they are open; what shares a place is never open at once.
  TensorView memory() const override { return memory_; }
  int64_t index(int64_t group, int64_t element) const override;

  // The file gets the open group in the background.
  void written(int64_t group) override;
  void finish_updates() override;
  void loaded(bool whole_node) override;

  // Through staged elements, which take another way than the passes: no update may be unfinished.
  void visit(Access access, int64_t group, int64_t begin, int64_t count, Visit body) const override;
  AsyncFileStatistics file_statistics() const override { return file_.file().statistics(); }

 private:
  bool is_in_file(int64_t group) const { return window_.file_begin[static_cast<size_t>(group)] >= 0; }
  std::span<std::byte> staged(int64_t count) const;
  int64_t file_offset(int64_t group, int64_t begin) const;

  const ParameterLayout* layout_;
  WeightWindow window_;
  PageBuffer buffer_;
  TensorView memory_;
  LayerFile file_;
  UniqueFd cached_fd_;          // the file through the page cache, for transfers of any alignment
  mutable std::mutex staging_;  // guards the staged elements
};

}  // namespace tessera
