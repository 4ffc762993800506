// Jobs that were written for other programs, made jobs of this one.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

struct Conversion {
  std::string image;
  std::string runtime;  // ClusterTrainingRuntime of TrainJobs in place of theirs; "" keeps it
  std::vector<std::string> train_arguments;  // "--flag=value"
};

// The flags given, also in a configuration file, for the pods of these jobs. Error(kUsage) if nothing says
// where the output goes: a folder that all pods see, which the volume of --runtime is.
std::vector<std::string> converted_arguments(const std::vector<const Flag*>& given, bool has_runtime);

// The text with image and command of every TrainJob (Kubeflow Trainer) and PyTorchJob (its training-operator)
// replaced. All else stays as it is, comments and ${VARIABLES} included. Error(kBadData) without such a job,
// and for one in which the fields to replace are not on lines of their own.
std::string convert_jobs(const std::string& text, const std::string& origin, const Conversion& conversion);

}  // namespace tessera
