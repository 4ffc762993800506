// Describes what deploy/eks/terraform created, as printed by `terraform output -json`.
#pragma once

#include <filesystem>
#include <string>

#include "base/value.h"

namespace tessera {

struct Infrastructure {
  std::string name;
  std::string region;
  std::string zone;      // of the training nodes
  std::string storage;   // "fsx", "efs", "s3"
  Value::Object values;  // what the templates read: the outputs without their types
};

// Error(kBadData), one line with the file, the output, what was expected and found.
Infrastructure read_infrastructure(const std::filesystem::path& path);

}  // namespace tessera
