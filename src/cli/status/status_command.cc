#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "cluster/jobs/diagnosis.h"

namespace tessera {
namespace {

constexpr const char* kNamespace = "training";
constexpr int64_t kMaxDetailChars = 600;

bool is_file_name(const std::string& job) {
  return job.find('/') != std::string::npos || job.ends_with(".yaml") || job.ends_with(".yml") ||
         job.ends_with(".json");
}

class StatusCommand : public Command {
 public:
  std::string name() const override { return "status"; }
  std::string summary() const override {
    return "Tell what a job in Kubernetes is doing, or what holds it up";
  }
  std::string usage() const override { return "JOB.yaml | NAME [flags]"; }
  std::string description() const override {
    return "Asks the cluster through kubectl (that of $KUBECTL, or in PATH, with its current context) about "
           "a TrainJob, a JobSet or a Job and all that belongs to it, and says in a few lines whether it "
           "is waiting for quota, nodes, its image or a volume, why it failed, or how far it is.\n"
           "Exit codes: 0 it runs or has finished; 1 it is waiting for something the cluster does by itself; "
           "2 "
           "it waits until somebody changes something; 3 it failed for good. 66 there is no such job, 74 the "
           "cluster cannot be reached, 78 kubectl is not logged in or may not see the job.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera status job.yaml", "tessera status llama-8b --namespace team-a --json"};
  }

  void declare_flags(FlagTable* table) override {
    Flag& job = table->add("job", &job_, "The file that was applied, or the name of the job.");
    job.value_name = "JOB.yaml|NAME";
    job.positional = true;
    job.required = true;
    table
        ->add("namespace", &name_space_,
              "Namespace of the job. Defaults to the one in the file, or else to training.")
        .value_name = "NAME";
    table->add("json", &as_json_, "Print a JSON object.");
  }

  void run(FlagTable*) override {
    JobName name = {.name = job_, .name_space = {}};
    if (is_file_name(job_)) name = job_in_file(job_);
    if (!name_space_.empty()) name.name_space = name_space_;
    if (name.name_space.empty()) name.name_space = kNamespace;
    for (const std::string& each : {name.name, name.name_space}) check_name(each);
    const JobObjects job = get_job(Kubectl(process_environment()), name);
    const Diagnosis found = diagnose(job);
    if (as_json_) {
      write_output(json_of(job, found));
    } else {
      show(job, found);
    }
    flush_output();
    if (found.outlook != Outlook::kGood) throw ResultCode{static_cast<int>(found.outlook)};
  }

 private:
  // It becomes an argument of kubectl.
  static void check_name(const std::string& name) {
    const auto is_valid = [](unsigned char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    };
    constexpr size_t kMaxBytes = 253;
    if (name.empty() || name.size() > kMaxBytes || name.front() == '-' ||
        !std::ranges::all_of(name, is_valid))
      fail(ExitCode::kUsage,
           "expected the name of an object (lower case, digits, '-', '.') or a .yaml file, found '{}'",
           printable(name));
  }

  static void show(const JobObjects& job, const Diagnosis& found) {
    print("{} ({} in namespace {}): {}\n", job.name, job.kind, job.name_space, found.headline);
    for (const std::string& detail : found.details) print("  {}\n", printable(detail, kMaxDetailChars));
    const PodCounts pods = count_pods(job);
    const std::string progress = progress_of(job).text();
    if (progress.empty() && !last_line(job).empty()) print("  rank 0: {}\n", last_line(job));
    if (!progress.empty()) print("  {}{}\n", found.state == "running" ? "" : "last seen: ", progress);
    if (num_restarts(job) > 0 && found.state != "restarting")
      print("  {}: {}\n", job.kind == "Job" ? "failed pods" : "restarts", num_restarts(job));
    if (found.state == "running") print("  {} on {}\n", count_of(pods.running, "pod"), nodes_text(job));
    if (!job.not_allowed.empty())
      print("  not seen (no permission): {}\n", fmt::format("{}", fmt::join(job.not_allowed, ", ")));
    if (!found.advice.empty()) print("  -> {}\n", found.advice);
  }

  static std::string nodes_text(const JobObjects& job) {
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

  static std::string json_of(const JobObjects& job, const Diagnosis& found) {
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

  std::string job_;
  std::string name_space_;
  bool as_json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status_command() { return std::make_unique<StatusCommand>(); }

}  // namespace tessera
