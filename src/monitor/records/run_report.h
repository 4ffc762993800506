// The report of runs in folders that the page shows.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "monitor/records/run_records.h"

namespace tessera {

// The most steps of a run that a page is given at once; StepTable::thinned() chooses them.
inline constexpr int64_t kReportSteps = 20'000;

// RunRecords::json() with name, updated (Unix seconds of the last step, 0 = unknown) and steps
// (StepTable::json() of all).
nlohmann::ordered_json run_json(const std::string& name, const RunRecords& records, double updated,
                                int64_t max_steps = kReportSteps);

// The absolute path without "." and "..", and without a slash at its end.
std::filesystem::path plain_path(const std::filesystem::path& folder);

// Unix seconds at which the run in the folder last wrote its metrics; 0 if there are none.
double last_written(const std::filesystem::path& folder);

// {"runs": [run_json() of each], "version": ..., "time": now}. The runs are named by their folders, with
// enough parents to tell them apart. Errors of read_run_folder().
nlohmann::ordered_json run_report(const std::vector<std::filesystem::path>& folders);

}  // namespace tessera
