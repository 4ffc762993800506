// Finds out what is holding up a job in a cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/jobs/job_objects.h"

namespace tessera {

// `tessera status` exits with this code.
enum class Outlook : int {
  kGood = 0,      // runs, or has finished
  kWaiting = 1,   // for something the cluster does by itself
  kHindered = 2,  // waits until somebody changes something
  kFailed = 3,    // for good: nothing restarts it
};

struct Diagnosis {
  Outlook outlook = Outlook::kGood;
  std::string state;                 // one word for programs: "queued", "image", "running", ...
  std::string headline;              // "waiting for quota"
  std::vector<std::string> details;  // what the cluster says
  std::string advice;                // "" = there is nothing to do
};

// By the last progress line of rank 0 (plain_progress_line()), the last step of metrics.jsonl, which has all
// of them, or the TrainJob's trainerStatus.
struct JobProgress {
  std::optional<int64_t> step, max_steps;
  std::optional<double> loss;
  std::optional<int64_t> percent;
  std::string eta;  // "01:23", "" = not known

  std::string text() const;  // "step 45 of 600 (7 %), loss 3.1416, ETA 01:23"; "" if nothing is known
};

struct PodCounts {
  int64_t wanted = 0, running = 0, pending = 0, failed = 0, succeeded = 0;
  bool all_run() const { return running + succeeded >= wanted; }
};

JobProgress progress_of(const JobObjects& job);
// The last line of rank 0's log; "" if there is none.
std::string last_line(const JobObjects& job);
PodCounts count_pods(const JobObjects& job);
// Restarts of a JobSet but for those of pods that Kueue ended, failed pods of a Job, or restarts of a
// PyTorchJob's containers.
int64_t num_restarts(const JobObjects& job);
// Counts how often Kueue evicted the job.
int64_t num_evictions(const JobObjects& job);
Diagnosis diagnose(const JobObjects& job);

// The steps of diagnose(): nullopt if that is not what holds up the job.
std::optional<Diagnosis> ended(const JobObjects& job);
std::optional<Diagnosis> not_admitted(const JobObjects& job);
std::optional<Diagnosis> on_lost_node(const JobObjects& job);
std::optional<Diagnosis> without_pods(const JobObjects& job);
std::optional<Diagnosis> pods_not_running(const JobObjects& job);

// One line of what a controller says.
std::string message_line(const std::string& text);
inline bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }
// The newest pod of each index.
std::vector<const nlohmann::json*> current_pods(const JobObjects& job);

// A container that ended with an error: "pod a-node-0-1: exit code 78 (bad configuration): ...".
struct ContainerEnd {
  int64_t code = 0;
  bool is_consequence = false;  // of another's end
  std::string text;
  std::string time;
};
// The failure that explains the others: errors that would repeat first, then the earliest; nullopt if there
// is none.
std::optional<ContainerEnd> first_failure(const JobObjects& job);

}  // namespace tessera
