// Writes a model folder from several processes, each writing its part of the weights; the result has the same
// bytes as export_model_folder() in one process.
//
//   one process:   create()   creates the unfinished files; send the number in their names to all others
//   every process: write()    writes its elements
//   the first:     commit()   once all have written: renames the files to their final names
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/safetensors/safetensors_layout.h"
#include "weights/model_folder.h"

namespace tessera {

class SharedExport {
 public:
  // `layout` must outlive this.
  SharedExport(std::filesystem::path folder, const ModelConfig& config, const ParameterLayout& layout,
               const ExportOptions& options);
  // In the process that called create(): removes the unfinished files unless committed.
  ~SharedExport();
  SharedExport(const SharedExport&) = delete;
  SharedExport& operator=(const SharedExport&) = delete;

  // Creates the folder, and in it hidden files of full size with their headers. Returns the number in their
  // names. Error(kIoError).
  uint64_t create();
  // Writes the elements of `ranges` (ascending) and returns once they are on disk. Error(kIoError);
  // kBadConfig if the unfinished files are not visible here because this machine has a different folder at
  // that path; kNumerics as in export_model_folder().
  void write(uint64_t number, const std::vector<ElementRange>& ranges, const WeightSource& source) const;
  // The memory that write() takes.
  static int64_t buffer_bytes(DType save_dtype);
  // Afterwards the folder holds the new model and nothing of an older one.
  void commit();

 private:
  std::filesystem::path unfinished_path(uint64_t number, const std::string& name) const;
  void wait_until_visible(const std::filesystem::path& path) const;

  std::filesystem::path folder_;
  ModelConfig config_;
  const ParameterLayout* layout_;
  ExportOptions options_;
  SafetensorsModelLayout files_;
  std::optional<uint64_t> created_;
};

}  // namespace tessera
