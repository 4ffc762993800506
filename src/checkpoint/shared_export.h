// A model folder written by several processes together, each its part of the weights: the same bytes as
// export_model_folder() by one.
//
//   one process:   create()   makes the unfinished files; the number that names them goes to all others
//   every process: write()    its elements
//   the one:       commit()   once all have written: gives the files their names
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_folder.h"
#include "formats/safetensors_layout.h"

namespace tessera {

class SharedExport {
 public:
  // `layout` must outlive this.
  SharedExport(std::filesystem::path folder, const ModelConfig& config, const ParameterLayout& layout,
               const ExportOptions& options);
  // In the process that created: removes unfinished files unless committed.
  ~SharedExport();
  SharedExport(const SharedExport&) = delete;
  SharedExport& operator=(const SharedExport&) = delete;

  // Makes the folder, and in it hidden files of full size with their headers. Error(kIoError).
  uint64_t create();
  // Writes the elements of `ranges`, which ascend, and returns when they are on the disk. Error(kIoError);
  // kBadConfig when the unfinished files cannot be seen here, since this machine has another folder under
  // that name; kNumerics as in export_model_folder().
  void write(uint64_t number, const std::vector<ElementRange>& ranges, const WeightSource& source) const;
  // The memory that takes.
  static int64_t buffer_bytes(DType save_dtype);
  // Then the folder has the new model, and nothing of an older one.
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
