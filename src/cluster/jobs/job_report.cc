#include "cluster/jobs/job_report.h"

#include <algorithm>

#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDetailChars = 600;

std::string nodes_text(const JobObjects& job) {
  std::vector<std::string> names;
  for (const nlohmann::json* pod : current_pods(job)) {
    const std::string node = printable(text_at(*pod, "/spec/nodeName"));
    if (!node.empty() && std::ranges::find(names, node) == names.end()) names.push_back(node);
  }
  std::ranges::sort(names);
  constexpr size_t kMaxShown = 4;
  if (names.size() > kMaxShown) return count_of(std::ssize(names), "node");
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string job_text(const JobObjects& job, const Diagnosis& found) {
  std::string text =
      fmt::format("{} ({} in namespace {}): {}\n", job.name, job.kind, job.name_space, found.headline);
  for (const std::string& detail : found.details)
    text += fmt::format("  {}\n", printable(detail, kMaxDetailChars));
  const PodCounts pods = count_pods(job);
  const std::string progress = progress_of(job).text();
  if (progress.empty() && !last_line(job).empty()) text += fmt::format("  rank 0: {}\n", last_line(job));
  if (!progress.empty())
    text += fmt::format("  {}{}\n", found.state == "running" ? "" : "last seen: ", progress);
  if (num_restarts(job) > 0 && found.state != "restarting")
    text += fmt::format("  {}: {}\n", job.kind == "Job" ? "failed pods" : "restarts", num_restarts(job));
  if (num_evictions(job) > 0) text += fmt::format("  evictions by Kueue: {}\n", num_evictions(job));
  if (found.state == "running")
    text += fmt::format("  {} on {}\n", count_of(pods.running, "pod"), nodes_text(job));
  if (!job.not_allowed.empty())
    text +=
        fmt::format("  not seen (no permission): {}\n", fmt::format("{}", fmt::join(job.not_allowed, ", ")));
  if (!found.advice.empty()) text += fmt::format("  -> {}\n", found.advice);
  return text;
}

std::string job_json(const JobObjects& job, const Diagnosis& found) {
  const PodCounts pods = count_pods(job);
  const JobProgress progress = progress_of(job);
  nlohmann::ordered_json out = {{"name", job.name},
                                {"namespace", job.name_space},
                                {"kind", job.kind},
                                {"state", found.state},
                                {"exit_code", static_cast<int>(found.outlook)},
                                {"message", found.headline},
                                {"details", found.details},
                                {"advice", found.advice},
                                {"pods",
                                 {{"wanted", pods.wanted},
                                  {"running", pods.running},
                                  {"pending", pods.pending},
                                  {"failed", pods.failed},
                                  {"succeeded", pods.succeeded}}},
                                {"restarts", num_restarts(job)},
                                {"evictions", num_evictions(job)},
                                {"last_line", last_line(job)},
                                {"not_seen", job.not_allowed}};
  nlohmann::ordered_json& far = out["progress"] = nlohmann::ordered_json::object();
  if (progress.step) far["step"] = *progress.step;
  if (progress.max_steps) far["max_steps"] = *progress.max_steps;
  if (progress.percent) far["percent"] = *progress.percent;
  if (progress.loss) far["loss"] = *progress.loss;
  if (!progress.eta.empty()) far["eta"] = progress.eta;
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tessera
