// Writes the trained model as a Hugging Face folder.
#pragma once

#include <filesystem>
#include <functional>

#include "comm/communicator.h"
#include "model/trainable_model.h"
#include "shard/store_state.h"
#include "train/output/output_folder.h"
#include "weights/model_folder.h"

namespace tessera {

class ModelWriter {
 public:
  // Arguments passed by reference must outlive this. `output_is_shared`: all nodes see output_dir.
  ModelWriter(Communicator& comm, const TrainableModel& model, StoreState& state, ExportOptions options,
              bool output_is_shared);

  const ExportOptions& options() const { return options_; }
  // Whether `folder` has a model as write() leaves it, by the names and sizes of its files.
  bool has_written(const std::filesystem::path& folder) const {
    return has_model_files(folder, model_.config(), model_.layout(), options_);
  }

  // Collective: all ranks write what they own, or, without a common folder, send it to rank 0, which writes
  // it all. `output` is nullptr on the other ranks; after_export() runs on rank 0 once the model is in place.
  void write(OutputFolder* output, const std::filesystem::path& output_dir,
             const std::function<void()>& after_export);
  // Collective: rank 0 writes the whole model into `folder`.
  void export_whole(const std::filesystem::path& folder);

 private:
  // Every rank what it owns, as in a checkpoint.
  void export_parts(const std::filesystem::path& folder);
  void hand_over_to_first_rank(OutputFolder* output, const std::function<void()>& after_export);

  Communicator& comm_;
  const TrainableModel& model_;
  StoreState& state_;
  ExportOptions options_;
  bool output_is_shared_;
  bool handed_over_ = false;  // the masters, in hand_over_to_first_rank()
};

}  // namespace tessera
