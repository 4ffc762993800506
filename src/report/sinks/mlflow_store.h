// Where MLflow keeps runs: a tracking server, asked over its REST API 2.0, or a folder in the format of
// mlflow/store/tracking/file_store.py.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "comm/ranks/world.h"

namespace tessera {

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t time_ms = 0;  // since 1970
  int64_t step = 0;
};

// A new run, or one that resumes.
struct MlflowRun {
  std::string id;                             // "" = a new run
  std::string name;                           // of a new run
  std::string experiment;                     // by name; "" = the default one
  std::map<std::string, std::string> params;  // of a new run; they cannot be changed later
};

enum class MlflowStatus { kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5 };  // RunStatus of MLflow

// Errors are Error(kTryAgain) if a retry may help, otherwise kIoError; what() names the store.
class MlflowStore {
 public:
  virtual ~MlflowStore() = default;
  // Returns the id of the run, to which the other calls refer. May be called again after an error.
  virtual std::string begin(const MlflowRun& run) = 0;
  virtual void log(std::span<const MlflowMetric> metrics) = 0;  // at most 1000
  virtual void set_status(MlflowStatus status, int64_t end_time_ms) = 0;
};

// Chosen by MLFLOW_TRACKING_URI: http(s)://, with MLFLOW_TRACKING_TOKEN or _USERNAME and _PASSWORD; file://
// or a folder, which by default is mlruns. Error(kBadConfig) for anything else.
std::unique_ptr<MlflowStore> open_mlflow_store(const Environment& environment);

int64_t unix_milliseconds();

}  // namespace tessera
