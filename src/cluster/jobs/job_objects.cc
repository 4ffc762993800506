#include "cluster/jobs/job_objects.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "cluster/manifests/manifest.h"
#include "io/file.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxJobFileBytes = 16 << 20;
constexpr const char* kTrainJobsKind = "trainjobs.trainer.kubeflow.org";
constexpr const char* kJobSetsKind = "jobsets.jobset.x-k8s.io";
constexpr const char* kJobsKind = "jobs.batch";
constexpr const char* kPyTorchJobsKind = "pytorchjobs.kubeflow.org";
constexpr const char* kPyTorchJobLabel = "training.kubeflow.org/job-name";
constexpr const char* kJobSetLabel = "jobset.sigs.k8s.io/jobset-name";
constexpr const char* kJobLabel = "job-name";  // since 1.27 also with batch.kubernetes.io/ before it

struct Question {
  const char* kind;
  std::vector<std::string> arguments;  // a name or a selector
};

std::vector<std::string> get_command(const Question& question, const std::string& name_space) {
  std::vector<std::string> command = {"get", question.kind};
  command.insert(command.end(), question.arguments.begin(), question.arguments.end());
  command.insert(command.end(),
                 {"--namespace", name_space, "--ignore-not-found", "--output=json", "--request-timeout=30s"});
  return command;
}

// null for a kind that the cluster lacks, or that this user may not see, which is noted.
Json object_in(const KubectlAnswer& answer, const char* kind, std::vector<std::string>* not_allowed) {
  const NoAnswer problem = problem_of(answer);
  if (problem == NoAnswer::kForbidden && std::ranges::find(*not_allowed, kind) == not_allowed->end())
    not_allowed->push_back(kind);
  if (problem != NoAnswer::kNone || answer.out.find_first_not_of(" \n") == std::string::npos) return nullptr;
  Json object = Json::parse(answer.out, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    fail(ExitCode::kIoError, "kubectl get {}: expected an object as JSON, found '{}'", kind,
         printable(answer.out, 60));
  return object;
}

std::vector<Json> items_of(Json list) {
  std::vector<Json> items;
  for (Json& item : list.is_object() && list.contains("items") ? list["items"] : list = Json::array()) {
    if (item.is_object()) items.push_back(std::move(item));
  }
  return items;
}

// Newest first. All times come from the API server's clock, in one format.
void sort_pods(std::vector<Json>* pods) {
  std::ranges::sort(*pods, [](const Json& a, const Json& b) {
    const auto created = [](const Json& pod) { return text_at(pod, "/metadata/creationTimestamp"); };
    return std::tuple(created(b), index_of(a)) < std::tuple(created(a), index_of(b));
  });
}

void keep_own_events(JobObjects* job) {
  std::set<std::string> own = {job->name};
  for (const auto* list : {&job->jobs, &job->pods, &job->claims, &job->workloads}) {
    for (const Json& object : *list) own.insert(object_name(object));
  }
  std::erase_if(job->events,
                [&](const Json& event) { return !own.contains(text_at(event, "/involvedObject/name")); });
  std::ranges::stable_sort(job->events, [](const Json& a, const Json& b) { return time_of(a) > time_of(b); });
}

void keep_own_workloads(JobObjects* job) {
  std::set<std::string> uids = {text_at(job->top, "/metadata/uid")};
  for (const Json& each : job->jobs) uids.insert(text_at(each, "/metadata/uid"));
  uids.insert(text_at(job->jobset, "/metadata/uid"));
  std::erase_if(job->workloads, [&](const Json& workload) {
    return std::ranges::none_of(list_at(workload, "/metadata/ownerReferences"),
                                [&](const Json& owner) { return uids.contains(text_at(owner, "/uid")); });
  });
}

void get_nodes(const Kubectl& kubectl, JobObjects* job) {
  std::set<std::string> names;
  for (const Json& pod : job->pods) names.insert(text_at(pod, "/spec/nodeName"));
  names.erase("");
  if (names.empty()) return;
  std::vector<std::string> command = {"get", "nodes"};
  command.insert(command.end(), names.begin(), names.end());
  command.insert(command.end(), {"--ignore-not-found", "--output=json", "--request-timeout=30s"});
  Json nodes = object_in(kubectl.run({command}).front(), "nodes", &job->not_allowed);
  if (names.size() > 1) {
    job->nodes = items_of(std::move(nodes));
  } else if (nodes.is_object()) {
    job->nodes.push_back(std::move(nodes));
  }
}

// The container that trains; null if there is none.
const Json& main_container(const Json& pod) {
  static const Json none;
  const Json& containers = list_at(pod, "/spec/containers");
  for (const Json& each : containers) {
    if (text_at(each, "/name") == "node") return each;
  }
  return containers.empty() ? none : containers.front();
}

// Where the run of a pod writes; "" if its arguments do not say.
std::string output_folder(const JobObjects& job, const Json& container) {
  constexpr std::string_view kFlag = "--output_dir=";
  for (const char* const list : {"/args", "/command"}) {
    for (const Json& word : list_at(container, list)) {
      if (!word.is_string() || !word.get_ref<const std::string&>().starts_with(kFlag)) continue;
      std::string folder = word.get<std::string>().substr(kFlag.size());
      // So the ClusterTrainingRuntime names it.
      constexpr std::string_view kJobName = "$(PET_RDZV_ID)";
      if (const size_t at = folder.find(kJobName); at != std::string::npos)
        folder.replace(at, kJobName.size(), job.name);
      return folder;
    }
  }
  return "";
}

// The log of rank 0, and the last step in the file that all pods see. A lost node is not asked: kubectl would
// wait for it.
void get_progress(const Kubectl& kubectl, JobObjects* job) {
  const auto rank0 = std::ranges::find_if(job->pods, [&](const Json& pod) {
    return index_of(pod) <= 0 && text_at(pod, "/status/phase") != "Pending" &&
           lost_node_of(*job, pod).empty();
  });
  const auto running = std::ranges::find_if(job->pods, [&](const Json& pod) {
    return text_at(pod, "/status/phase") == "Running" && !is_terminating(pod) &&
           lost_node_of(*job, pod).empty();
  });
  std::vector<std::vector<std::string>> commands;
  const bool has_log = rank0 != job->pods.end();
  if (has_log) {
    commands.push_back({"logs", object_name(*rank0), "--container", text_at(main_container(*rank0), "/name"),
                        "--namespace", job->name_space, "--tail=60", "--request-timeout=30s"});
  }
  const auto lost =
      std::ranges::find_if(job->pods, [&](const Json& pod) { return !lost_node_of(*job, pod).empty(); });
  if (!has_log && running == job->pods.end() && lost != job->pods.end())
    job->unread_folder = output_folder(*job, main_container(*lost));
  const Json container = running == job->pods.end() ? Json() : main_container(*running);
  const std::string folder = output_folder(*job, container);
  if (!folder.empty()) {
    commands.push_back({"exec", object_name(*running), "--container", text_at(container, "/name"),
                        "--namespace", job->name_space, "--request-timeout=30s", "--", "tail", "-n", "1",
                        folder + "/metrics.jsonl"});
  }
  const std::vector<KubectlAnswer> answers = kubectl.run(commands);
  // A container that is being created, or is gone, has no log, and a run that has not begun no steps.
  if (has_log && answers.front().exit_code == 0) job->log = answers.front().out;
  if (has_log && answers.front().err.find("(Forbidden)") != std::string::npos)
    job->not_allowed.push_back("logs");
  if (folder.empty()) return;
  if (answers.back().exit_code == 0)
    job->last_step = Json::parse(answers.back().out, nullptr, /*allow_exceptions=*/false);
  if (answers.back().err.find("(Forbidden)") != std::string::npos)
    job->not_allowed.push_back("metrics.jsonl");
}

bool is_job_file(const std::string& job) {
  return job.find('/') != std::string::npos || job.ends_with(".yaml") || job.ends_with(".yml") ||
         job.ends_with(".json");
}

// It becomes an argument of kubectl.
void check_name(const std::string& name) {
  const auto is_valid = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  };
  constexpr size_t kMaxBytes = 253;
  if (name.empty() || name.size() > kMaxBytes || name.front() == '-' || !std::ranges::all_of(name, is_valid))
    fail(ExitCode::kUsage,
         "expected the name of an object (lower case, digits, '-', '.') or a .yaml file, found '{}'",
         printable(name));
}

JobName job_in_file(const std::string& path) {
  for (const Manifest& each : parse_manifests(read_text_file(path, kMaxJobFileBytes), path)) {
    const std::string kind = each.kind();
    if ((kind == "TrainJob" || kind == "JobSet" || kind == "Job" || kind == "PyTorchJob") &&
        !each.name().empty())
      return {each.name(), each.name_space()};
  }
  fail(ExitCode::kBadData, "{}: expected a TrainJob, JobSet, Job or PyTorchJob with a name, found none",
       path);
}

}  // namespace

JobName job_asked_for(const std::string& job, const std::string& name_space) {
  JobName asked = {.name = job, .name_space = {}};
  if (is_job_file(job)) asked = job_in_file(job);
  if (!name_space.empty()) asked.name_space = name_space;
  if (asked.name_space.empty()) asked.name_space = "training";
  for (const std::string& each : {asked.name, asked.name_space}) check_name(each);
  return asked;
}

JobObjects get_job(const Kubectl& kubectl, const JobName& name) {
  JobObjects job;
  job.name = name.name;
  job.name_space = name.name_space;
  const std::string of_jobset = fmt::format("--selector={}={}", kJobSetLabel, name.name);
  const std::string of_job = fmt::format("--selector={}={}", kJobLabel, name.name);
  const std::string of_pytorch_job = fmt::format("--selector={}={}", kPyTorchJobLabel, name.name);
  const std::vector<Question> questions = {{kTrainJobsKind, {name.name}},
                                           {kJobSetsKind, {name.name}},
                                           {kJobsKind, {name.name}},
                                           {kPyTorchJobsKind, {name.name}},
                                           {kJobsKind, {of_jobset}},
                                           {"pods", {of_jobset}},
                                           {"pods", {of_job}},
                                           {"pods", {of_pytorch_job}},
                                           {"events", {}},
                                           {"workloads.kueue.x-k8s.io", {}},
                                           {"persistentvolumeclaims", {}}};
  std::vector<std::vector<std::string>> commands;
  for (const Question& question : questions) commands.push_back(get_command(question, name.name_space));
  const std::vector<KubectlAnswer> answers = kubectl.run(commands);
  constexpr size_t kNumJobKinds = 4;
  std::vector<Json> found;
  std::vector<std::string> unknown_kinds;  // of jobs: this one may be of such a kind
  for (size_t i = 0; i < questions.size(); ++i) {
    found.push_back(object_in(answers[i], questions[i].kind, &job.not_allowed));
    if (i + 1 == kNumJobKinds) unknown_kinds = job.not_allowed;
  }

  job.jobset = found[1];
  for (const auto& [kind, place] : {std::pair("TrainJob", 0), {"JobSet", 1}, {"Job", 2}, {"PyTorchJob", 3}}) {
    if (!job.top.is_null() || found[static_cast<size_t>(place)].is_null()) continue;
    job.top = found[static_cast<size_t>(place)];
    job.kind = kind;
  }
  if (job.top.is_null() && !unknown_kinds.empty())
    fail(ExitCode::kBadConfig,
         "this user may not see {} in namespace {}: `kubectl auth can-i --list` lists what is allowed",
         fmt::join(unknown_kinds, ", "), name.name_space);
  if (job.top.is_null())
    fail(ExitCode::kNoInput,
         "there is no TrainJob, JobSet, Job or PyTorchJob '{}' in namespace {}: was it applied, or is it in "
         "another "
         "--namespace?",
         name.name, name.name_space);
  job.jobs = items_of(std::move(found[4]));
  if (job.kind == "Job") job.jobs = {job.top};
  job.pods = items_of(std::move(found[job.kind == "Job" ? 6 : job.kind == "PyTorchJob" ? 7 : 5]));
  job.events = items_of(std::move(found[8]));
  job.workloads = items_of(std::move(found[9]));
  job.claims = items_of(std::move(found[10]));
  sort_pods(&job.pods);
  keep_own_workloads(&job);
  keep_own_events(&job);
  get_nodes(kubectl, &job);
  get_progress(kubectl, &job);
  return job;
}

std::string text_at(const Json& object, const std::string& pointer) {
  const Json::json_pointer at(pointer);
  return object.is_structured() && object.contains(at) && object.at(at).is_string()
             ? object.at(at).get<std::string>()
             : "";
}

int64_t number_at(const Json& object, const std::string& pointer, int64_t otherwise) {
  const Json::json_pointer at(pointer);
  return object.is_structured() && object.contains(at) && object.at(at).is_number_integer()
             ? object.at(at).get<int64_t>()
             : otherwise;
}

std::string time_of(const Json& event) {
  for (const char* const field : {"/series/lastObservedTime", "/lastTimestamp", "/eventTime"}) {
    const std::string time = text_at(event, field);
    if (!time.empty()) return time;
  }
  return text_at(event, "/metadata/creationTimestamp");
}

std::optional<double> seconds_between(const std::string& from, const std::string& to) {
  const auto unix_time = [](const std::string& text) -> std::optional<time_t> {
    std::tm time = {};
    const char* const rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
    return rest == nullptr ? std::nullopt : std::optional(timegm(&time));
  };
  const auto start = unix_time(from), end = unix_time(to);
  if (!start || !end) return std::nullopt;
  return std::difftime(*end, *start);
}

std::string object_name(const Json& object) { return text_at(object, "/metadata/name"); }

bool flag_at(const Json& object, const std::string& pointer) {
  const Json::json_pointer at(pointer);
  return object.is_structured() && object.contains(at) && object.at(at) == true;
}

const Json& list_at(const Json& object, const std::string& pointer) {
  static const Json none = Json::array();
  const Json::json_pointer at(pointer);
  return object.is_structured() && object.contains(at) && object.at(at).is_array() ? object.at(at) : none;
}

const Json& condition(const Json& object, const std::string& type) {
  static const Json none;
  for (const Json& each : list_at(object, "/status/conditions")) {
    if (text_at(each, "/type") == type) return each;
  }
  return none;
}

bool is_true(const Json& object, const std::string& condition_type) {
  return text_at(condition(object, condition_type), "/status") == "True";
}

int64_t index_of(const Json& pod) {
  for (const char* const place : {"/metadata/annotations", "/metadata/labels"}) {
    const std::string text = text_at(pod, std::string(place) + "/batch.kubernetes.io~1job-completion-index");
    if (const auto index = parse_integer(text)) return *index;
  }
  // The training-operator's: the Master comes before Workers 0, 1 and so on.
  const std::string labels = "/metadata/labels/training.kubeflow.org~1";
  if (const auto index = parse_integer(text_at(pod, labels + "replica-index")))
    return *index + (text_at(pod, labels + "replica-type") == "worker" ? 1 : 0);
  return -1;
}

std::string lost_node_of(const JobObjects& job, const Json& pod) {
  const std::string name = text_at(pod, "/spec/nodeName");
  if (text_at(pod, "/status/reason") == "NodeLost") return name;
  for (const Json& node : job.nodes) {
    // "False" comes from the kubelet itself.
    if (object_name(node) == name && text_at(condition(node, "Ready"), "/status") == "Unknown") return name;
  }
  return "";
}

}  // namespace tessera
