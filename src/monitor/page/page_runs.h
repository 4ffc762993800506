// The runs that a page can show beside its own: earlier ones in the same folder and those in folders next to
// it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "monitor/records/run_records.h"

namespace tessera {

// Reads files; for the page's own thread.
class PageRuns {
 public:
  // Runs beside the one that writes to `output_dir`.
  explicit PageRuns(const std::filesystem::path& output_dir);

  const std::string& own_name() const { return own_name_; }
  // {"live": own name, "time": now, "runs": [{"name", "updated"}, ...]}: the own run, then the others, newest
  // first, at most kMaxRuns.
  nlohmann::ordered_json list();
  // A run that list() has named, read afresh if its metrics have changed; nullptr for other names. Errors of
  // read_run_folder().
  std::shared_ptr<const RunRecords> read(const std::string& name);
  // Unix seconds; see last_written().
  double updated(const std::string& name) const;

  static constexpr size_t kMaxRuns = 100;

 private:
  struct ReadRun {
    double updated = 0;
    std::shared_ptr<const RunRecords> records;
  };

  void find_runs();

  std::filesystem::path output_dir_;
  std::string own_name_;
  std::map<std::string, std::filesystem::path> folders_;  // of other runs, by name
  std::map<std::string, ReadRun> read_;                   // a few of them
};

}  // namespace tessera
