#include "cluster/jobs/diagnosis.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "cluster/manifests/job_manifest.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Parses the number at the beginning of `text` after `label`; nullopt if there is none.
template <typename T>
std::optional<T> number_after(std::string_view text, std::string_view label) {
  const size_t at = text.find(label);
  if (at == std::string_view::npos) return std::nullopt;
  T value = 0;
  const char* const begin = text.data() + at + label.size();
  return std::from_chars(begin, text.data() + text.size(), value).ec == std::errc() ? std::optional(value)
                                                                                    : std::nullopt;
}

// plain_progress_line(), in a line of the log.
void read_progress_line(std::string_view line, JobProgress* progress) {
  const auto step = number_after<int64_t>(line, "step ");
  const auto max_steps = number_after<int64_t>(line, "/");
  const size_t eta = line.find("  ETA ");
  if (!step || !max_steps || eta == std::string_view::npos) return;
  progress->step = step;
  progress->max_steps = max_steps;
  progress->loss = number_after<double>(line, "  loss ");
  std::string_view rest = line.substr(eta + 6);
  rest = rest.substr(0, rest.find_first_of("\r\n"));
  progress->eta = rest.find_first_of("0123456789") == std::string_view::npos ? "" : printable(rest, 20);
}

// A line of metrics.jsonl. Lines of the log are farther apart.
void read_last_step(const Json& line, JobProgress* progress) {
  const int64_t step = number_at(line, "/step", -1);
  if (step < 0 || step == progress->step) return;
  progress->step = step;
  progress->loss = line.contains("loss") && line["loss"].is_number()
                       ? std::optional(line["loss"].get<double>())
                       : std::nullopt;
  progress->eta = "";
  const Json seconds = line.value("step_time_s", Json());
  if (progress->max_steps && *progress->max_steps >= step && seconds.is_number())
    progress->eta = format_eta(static_cast<double>(*progress->max_steps - step) * seconds.get<double>());
}

const char* meaning_of(int64_t code) {
  for (const auto& [known, meaning] : exit_code_meanings()) {
    if (known == code) return meaning;
  }
  return code == 143 ? "SIGTERM" : code == 137 ? "SIGKILL" : nullptr;
}

// The last error in a termination message, or its last line. Where the container has written none, the
// message is the end of its log (FallbackToLogsOnError).
std::string error_in(const std::string& message) {
  const size_t end = message.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  const std::string text = "\n" + message.substr(0, end + 1);
  const size_t error = text.rfind("\nerror: ");
  const size_t begin = (error == std::string::npos ? text.rfind('\n') : error) + 1;
  return message_line(text.substr(begin, text.find('\n', begin) - begin));
}

std::string describe(const Json& pod, const Json& status, const Json& end, bool is_init) {
  const int64_t code = number_at(end, "/exitCode");
  const std::string reason = text_at(end, "/reason");
  std::string what = fmt::format("exit code {}", code);
  if (const char* const meaning = meaning_of(code)) what += fmt::format(" ({})", meaning);
  if (reason == "OOMKilled") what = "killed because its memory limit was reached (OOMKilled)";
  std::string message = error_in(text_at(end, "/message"));
  // The agent's own line begins with the code.
  const std::string begin = fmt::format("exit code {}: ", code);
  if (message.starts_with(begin)) message.erase(0, begin.size());
  return fmt::format("pod {}{}: {}{}", object_name(pod),
                     is_init ? ", init container " + text_at(status, "/name") : "", what,
                     message.empty() ? "" : ": " + message);
}

bool would_repeat(int64_t code) { return std::ranges::find(kFinalCodes, code) != std::end(kFinalCodes); }

// Whether another pod's failure, or Kubernetes, caused this end.
bool is_consequence(const Json& end) {
  const int64_t code = number_at(end, "/exitCode");
  return code == 75 || code == 143 || (code == 137 && text_at(end, "/reason") != "OOMKilled");
}

std::vector<ContainerEnd> failures(const JobObjects& job) {
  std::vector<ContainerEnd> found;
  for (const Json& pod : job.pods) {
    for (const bool is_init : {true, false}) {
      for (const Json& status :
           list_at(pod, is_init ? "/status/initContainerStatuses" : "/status/containerStatuses")) {
        for (const char* const state : {"state", "lastState"}) {
          if (!status.contains(state) || !status[state].is_object()) continue;
          const Json end = status[state].value("terminated", Json());
          const int64_t code = number_at(end, "/exitCode");
          if (code == 0) continue;
          found.push_back(
              {code, is_consequence(end), describe(pod, status, end, is_init), text_at(end, "/finishedAt")});
        }
      }
    }
    // Evicted, or its node was lost: no container has a status.
    if (text_at(pod, "/status/phase") == "Failed" && list_at(pod, "/status/containerStatuses").empty())
      found.push_back({137, false,
                       fmt::format("pod {}: {}: {}", object_name(pod), text_at(pod, "/status/reason"),
                                   message_line(text_at(pod, "/status/message"))),
                       text_at(pod, "/metadata/creationTimestamp")});
  }
  return found;
}

// Why the last pods ended, spot interruptions among them.
std::vector<std::string> disruptions(const JobObjects& job) {
  std::vector<std::string> found;
  for (const Json& pod : job.pods) {
    const Json& target = condition(pod, "DisruptionTarget");
    if (text_at(target, "/status") != "True") continue;
    found.push_back(fmt::format("pod {}: {}: {}", object_name(pod), text_at(target, "/reason"),
                                message_line(text_at(target, "/message"))));
  }
  return found;
}

std::vector<std::string> sick_nodes(const JobObjects& job) {
  std::vector<std::string> found;
  for (const Json& node : job.nodes) {
    const std::string name = object_name(node);
    const Json& ready = condition(node, "Ready");
    if (!ready.is_null() && text_at(ready, "/status") != "True")
      found.push_back(
          fmt::format("node {} is not ready: {}", name, message_line(text_at(ready, "/message"))));
    if (is_true(node, "TesseraUnhealthy"))
      found.push_back(fmt::format("node {} is unhealthy: {}", name,
                                  message_line(text_at(condition(node, "TesseraUnhealthy"), "/message"))));
    for (const Json& taint : list_at(node, "/spec/taints")) {
      if (text_at(taint, "/key") == "karpenter.sh/disrupted")
        found.push_back(fmt::format("node {} is about to be removed (Karpenter is draining it)", name));
    }
  }
  return found;
}

}  // namespace

std::string message_line(const std::string& text) {
  std::string line = text;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  std::ranges::replace(line, '\n', ' ');
  return printable(line, 400);
}

std::vector<const Json*> current_pods(const JobObjects& job) {
  std::vector<const Json*> current;
  std::set<std::pair<std::string, int64_t>> seen;
  for (const Json& pod : job.pods) {
    const std::string of_job = text_at(pod, "/metadata/labels/job-name");
    const int64_t index = index_of(pod);
    if (index < 0 || seen.emplace(of_job, index).second) current.push_back(&pod);
  }
  return current;
}

std::optional<ContainerEnd> first_failure(const JobObjects& job) {
  const std::vector<ContainerEnd> all = failures(job);
  const auto best = std::ranges::min_element(all, [](const ContainerEnd& a, const ContainerEnd& b) {
    const auto rank = [](const ContainerEnd& end) {
      // Times are in seconds: of pods that ended within one, the others followed the killed one.
      return std::tuple(!would_repeat(end.code), end.is_consequence, end.time, end.code != 137);
    };
    return rank(a) < rank(b);
  });
  return best == all.end() ? std::nullopt : std::optional(*best);
}

std::string last_line(const JobObjects& job) {
  std::string_view log = job.log;
  const size_t end = log.find_last_not_of(" \r\n");
  if (end == std::string_view::npos) return "";
  log = log.substr(0, end + 1);
  return message_line(std::string(log.substr(log.rfind('\n') + 1)));
}

std::string JobProgress::text() const {
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  if (step && max_steps) add(fmt::format("step {} of {}", format_count(*step), format_count(*max_steps)));
  if (step && !max_steps) add(fmt::format("step {}", format_count(*step)));
  if (percent) {
    out += step && max_steps ? fmt::format(" ({} %)", *percent) : fmt::format("{} % done", *percent);
  }
  if (loss) add(fmt::format("loss {:.4f}", *loss));
  if (!eta.empty()) add("ETA " + eta);
  return out;
}

JobProgress progress_of(const JobObjects& job) {
  JobProgress progress;
  const std::string status = "/status/trainerStatus";
  if (const int64_t percent = number_at(job.top, status + "/progressPercentage", -1); percent >= 0)
    progress.percent = percent;
  for (const Json& metric : list_at(job.top, status + "/metrics")) {
    if (text_at(metric, "/name") == "loss")
      progress.loss = number_after<double>(text_at(metric, "/value"), "");
  }
  if (const int64_t left = number_at(job.top, status + "/estimatedRemainingSeconds", -1); left >= 0)
    progress.eta = format_eta(static_cast<double>(left));
  // The log is newer: the status is sent every few seconds at most.
  std::string_view log = job.log;
  while (!log.empty()) {
    const std::string_view line = log.substr(0, log.find('\n'));
    read_progress_line(line, &progress);
    log.remove_prefix(std::min(log.size(), line.size() + 1));
  }
  read_last_step(job.last_step, &progress);
  if (progress.step && progress.max_steps && *progress.max_steps > 0)
    progress.percent = 100 * *progress.step / *progress.max_steps;
  return progress;
}

PodCounts count_pods(const JobObjects& job) {
  PodCounts counts;
  for (const Json& each : job.jobs) counts.wanted += number_at(each, "/spec/parallelism", 1);
  for (const Json* pod : current_pods(job)) {
    const std::string phase = text_at(*pod, "/status/phase");
    counts.running += phase == "Running" ? 1 : 0;
    counts.pending += phase == "Pending" ? 1 : 0;
    counts.failed += phase == "Failed" ? 1 : 0;
    counts.succeeded += phase == "Succeeded" ? 1 : 0;
  }
  for (const char* const replica : {"Master", "Worker"})
    counts.wanted += number_at(job.top, fmt::format("/spec/pytorchReplicaSpecs/{}/replicas", replica));
  if (counts.wanted == 0) counts.wanted = number_at(job.top, "/spec/trainer/numNodes");
  return counts;
}

int64_t num_evictions(const JobObjects& job) {
  int64_t count = 0;
  for (const Json& workload : job.workloads) {
    for (const Json& each : list_at(workload, "/status/schedulingStats/evictions"))
      count += number_at(each, "/count");
  }
  return count;
}

int64_t num_restarts(const JobObjects& job) {
  if (job.kind == "PyTorchJob") {
    int64_t restarts = 0;
    for (const Json& pod : job.pods) restarts += number_at(pod, "/status/containerStatuses/0/restartCount");
    return restarts;
  }
  if (job.jobset.is_null()) return number_at(job.top, "/status/failed");
  // Pods that end with 143 before their Job is suspended restart the JobSet, as those of a drain do. That
  // costs no attempt.
  const int64_t restarts = number_at(job.jobset, "/status/restarts");
  const int64_t uncounted =
      std::max<int64_t>(0, restarts - number_at(job.jobset, "/status/restartsCountTowardsMax"));
  return restarts - std::min(uncounted, num_evictions(job));
}

std::optional<Diagnosis> ended(const JobObjects& job) {
  if (is_true(job.top, "Complete") || is_true(job.top, "Completed") || is_true(job.top, "Succeeded")) {
    Diagnosis found = {Outlook::kGood, "finished", "finished", {}, ""};
    for (const Json& pod : job.pods) {
      for (const Json& status : list_at(pod, "/status/containerStatuses")) {
        const std::string message = message_line(text_at(status, "/state/terminated/message"));
        if (index_of(pod) <= 0 && !message.empty()) found.details.push_back(message);
      }
    }
    return found;
  }
  const Json& failed = condition(job.top, "Failed");
  if (text_at(failed, "/status") != "True") return std::nullopt;
  Diagnosis found = {Outlook::kFailed, "failed", "failed", {}, ""};
  const auto first = first_failure(job);
  if (first) found.details.push_back(first->text);
  found.details.push_back(
      fmt::format("{}: {}", text_at(failed, "/reason"), message_line(text_at(failed, "/message"))));
  for (const std::string& disruption : disruptions(job)) found.details.push_back(disruption);
  found.advice =
      first && would_repeat(first->code)
          ? "it would fail the same way again: fix the cause, then delete the job and apply it again"
          : "delete the job and apply it again: it resumes from its last checkpoint";
  return found;
}

Diagnosis diagnose(const JobObjects& job) {
  for (const auto step : {ended, not_admitted, on_lost_node, without_pods, pods_not_running}) {
    if (std::optional<Diagnosis> found = step(job)) return *found;
  }
  const PodCounts counts = count_pods(job);
  Diagnosis found = {Outlook::kGood, "running", "running", {}, ""};
  if (!counts.all_run()) {
    found = {Outlook::kWaiting, "starting", "", {}, ""};
    found.headline = fmt::format("starting: {} of {} run", counts.running, count_of(counts.wanted, "pod"));
  }
  found.details = sick_nodes(job);
  for (const std::string& disruption : disruptions(job)) found.details.push_back(disruption);
  return found;
}

}  // namespace tessera
