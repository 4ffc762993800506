// The weights of a model whose adapters are trained: complete in each node's shared memory, read once, never
// changed and never written to a checkpoint. With base_quantization the matrices of layers are quantized as
// they are read, with the same bits whatever the number of ranks. A rank alone can have the decoder layers in
// a file, which is written once and read layer by layer in every pass. A model on another device has all of
// them there, or with ZeroSettings::parameters_on_host sees the host's through a window.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "formats/safetensors/safetensors.h"
#include "model/trainable_model.h"
#include "platform/thread_pool.h"
#include "shard/layout/zero_memory.h"
#include "shard/weights/device_window.h"
#include "shard/weights/layer_file.h"
#include "weights/model_folder.h"

namespace tessera {

class FrozenWeights : private ParameterAccess {
 public:
  // Collective; allocates, and binds the model to it. Arguments passed by reference must outlive this. If
  // ZeroSettings::frozen_folder is set, the layers go to rank-0.frozen there.
  FrozenWeights(TrainableModel& model, Communicator& comm, ThreadPool& pool, const ZeroSettings& settings);

  // Collective; after TrainableModel::reserve(). Each rank of the node reads a share of the files and makes a
  // share of the packed forms. `progress` reports what this rank reads. Returns the sums of the model's
  // values; Error(kBadConfig) if nodes have other ones.
  ValueSums load(const SafetensorsModel& file, const std::function<void(const LoadProgress&)>& progress);

  // Transfers of the file, including those of load().
  AsyncFileStatistics file_statistics() const {
    return file_ ? file_->file().statistics() : AsyncFileStatistics();
  }

 private:
  struct Reader;

  void load_from(Reader& reader);
  ValueSums sums_of_nodes(const ValueSums& own) const;
  void load_into_file(Reader& reader);
  void load_to_device(Reader& reader);
  int64_t group_bytes(int64_t group) const {
    return model_->frozen_begin(group + 1) - model_->frozen_begin(group);
  }

  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t /*group*/) override {}
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t group) override {
    return forms_.empty() ? nullptr : forms_[static_cast<size_t>(group)];
  }
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override;

  TrainableModel* model_;
  Communicator* comm_;
  ThreadPool* pool_;
  DeviceBuffer on_device_;  // all of them, or empty
  PageBuffer weights_;
  std::optional<LayerFile> file_;  // of layers; weights_ then has their places
  PageBuffer packed_;
  std::vector<std::byte*> forms_;  // by group; empty: none are kept
  std::optional<DeviceWindow> window_;
};

}  // namespace tessera
