// Jobs, JobSets, and the training runtimes and TrainJobs of Kubeflow Trainer.
#include <algorithm>
#include <charconv>

#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/lint_rules.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

constexpr std::string_view kAncestor = "trainer.kubeflow.org/trainjob-ancestor-step";
constexpr const char* kNumberOfRanks =
    "expected a number, or gpu for a rank on each card: 'auto' and 'cpu' start a rank per CPU";

int64_t integer_at(const Value& value, std::string_view path, int64_t otherwise) {
  const Value* const at = value_at(value, path);
  return at != nullptr && at->integer() != nullptr ? *at->integer() : otherwise;
}

int64_t grace_of(const Value& pod) { return integer_at(pod, "spec.terminationGracePeriodSeconds", 30); }

Value::List command_of(const Value& container) {
  Value::List words = list_at(container, "command");
  const Value::List& args = list_at(container, "args");
  words.insert(words.end(), args.begin(), args.end());
  return words;
}

// What a container gives to `tessera launch`; empty if it runs something else.
Value::List launch_words(const Value& container) {
  Value::List words = command_of(container);
  const auto begin = std::ranges::find(words, Value("tessera"));
  if (words.end() - begin < 2 || begin[1] != Value("launch")) return {};
  words.erase(words.begin(), begin + 1);
  return words;
}

// A value of a launcher's flag "--flag=value" among a container's arguments; -1 if it is not there.
int64_t seconds_of_argument(const Value& container, std::string_view flag) {
  for (const char* list : {"command", "args"}) {
    for (const Value& word : list_at(container, list)) {
      if (word.string() == nullptr || !word.string()->starts_with(flag)) continue;
      const char* const begin = word.string()->data() + flag.size();
      int64_t seconds = -1;
      if (std::from_chars(begin, word.string()->data() + word.string()->size(), seconds).ec == std::errc())
        return seconds;
    }
  }
  return -1;
}

void lint_grace(const Manifest& manifest, std::string_view path, const Value& container, int64_t pod_s,
                LintReport* report) {
  const int64_t launch_s = seconds_of_argument(container, "--termination_grace_s=");
  const int64_t run_s = seconds_of_argument(container, "--grace_period_s=");
  if (launch_s >= 0 && launch_s >= pod_s) {
    report->add(manifest, path,
                "kubelet kills the pod after {} s, the launcher its ranks after {} s: too late", pod_s,
                launch_s);
  }
  if (run_s >= 0 && launch_s >= 0 && run_s >= launch_s) {
    report->add(manifest, path, "--grace_period_s {} is not below --termination_grace_s {}", run_s, launch_s);
  }
}

// The name in PET_MASTER_ADDR exists only if the pods are in the subdomain of their headless Service, which a
// JobSet sets itself.
void lint_host_names(const PodTemplate& pod, LintReport* report) {
  for (const Value& container : list_at(*pod.value, "spec.containers")) {
    for (const Value& variable : list_at(container, "env")) {
      if (text_at(variable, "name") != "PET_MASTER_ADDR") continue;
      const std::string host = text_at(variable, "value"), subdomain = text_at(*pod.value, "spec.subdomain");
      const size_t dot = host.find('.');
      if (dot == std::string::npos || host.substr(dot + 1) == subdomain) continue;
      report->add(*pod.manifest, pod.path, "PET_MASTER_ADDR is {}, the subdomain of the pods '{}'", host,
                  subdomain);
    }
  }
}

std::string variable_of(const Value& container, std::string_view name) {
  for (const Value& variable : list_at(container, "env")) {
    if (text_at(variable, "name") == name) return text_at(variable, "value");
  }
  return "";
}

// The value of a flag "--flag=value" of a container; "" if it is not there.
std::string argument_of(const Value& container, std::string_view flag) {
  for (const Value& word : launch_words(container)) {
    if (word.string() != nullptr && word.string()->starts_with(flag))
      return word.string()->substr(flag.size());
  }
  return "";
}

// Kubeflow Trainer and the training-operator say how many pods there are and where they meet; in a JobSet or
// a Job the manifest does.
void lint_meeting(const PodTemplate& pod, LintReport* report) {
  const int64_t num_pods = integer_at(*pod.job, "parallelism", 1);
  if (num_pods < 2) return;
  for (const Value& container : list_at(*pod.value, "spec.containers")) {
    if (launch_words(container).empty()) continue;
    const std::string from_flag = argument_of(container, "--nnodes=");
    const std::string num_nodes = from_flag.empty() ? variable_of(container, "PET_NNODES") : from_flag;
    if (num_nodes.empty()) {
      report->add(*pod.manifest, pod.path,
                  "each of the {} pods would train alone: PET_NNODES does not say how many there are",
                  num_pods);
    } else if (num_nodes != std::to_string(num_pods)) {
      report->add(*pod.manifest, pod.path, "PET_NNODES is {}, and there are {} pods", num_nodes, num_pods);
    } else if (variable_of(container, "PET_MASTER_ADDR").empty() &&
               argument_of(container, "--master_addr=").empty() &&
               argument_of(container, "--rdzv_endpoint=").empty()) {
      report->add(*pod.manifest, pod.path, "nothing says where the {} pods meet: PET_MASTER_ADDR is missing",
                  num_pods);
    }
  }
}

bool mounts(const Value& container, const std::string& file) {
  return std::ranges::any_of(list_at(container, "volumeMounts"), [&](const Value& mount) {
    const std::string folder = text_at(mount, "mountPath");
    return file == folder || file.starts_with(folder + "/");
  });
}

// The file with the secret that pods prove to know is in a volume of theirs.
void lint_secret_file(const Manifest& manifest, const std::string& path, const Value& container,
                      const std::vector<const Value*>& pods, LintReport* report) {
  const std::string file = argument_of(container, "--rdzv_secret_file=");
  const bool is_there = file.empty() || std::ranges::any_of(pods, [&](const Value* pod) {
                          return std::ranges::any_of(list_at(*pod, "spec.containers"),
                                                     [&](const Value& each) { return mounts(each, file); });
                        });
  if (!is_there) report->add(manifest, path, "no volume is mounted where --rdzv_secret_file {} is", file);
}

// "at index 2$" of a failure rule must be a rule of podFailurePolicy.
void lint_failure_rules(const Manifest& manifest, const Value& spec, LintReport* report) {
  size_t num_rules = 0;
  for (const Value& job : list_at(spec, "replicatedJobs")) {
    num_rules = std::max(num_rules, list_at(job, "template.spec.podFailurePolicy.rules").size());
  }
  for (const Value& rule : list_at(spec, "failurePolicy.rules")) {
    for (const Value& pattern : list_at(rule, "onJobFailureMessagePatterns")) {
      constexpr std::string_view kIndex = "at index ";
      const std::string text = pattern.string() == nullptr ? "" : *pattern.string();
      const size_t at = text.find(kIndex);
      if (at == std::string::npos) continue;
      size_t index = 0;
      std::from_chars(text.data() + at + kIndex.size(), text.data() + text.size(), index);
      if (index >= num_rules) {
        report->add(manifest, "failurePolicy", "'{}' matches no rule of podFailurePolicy, which has {}", text,
                    num_rules);
      }
    }
  }
}

void lint_runtime(const Manifest& manifest, const Value& spec, LintReport* report) {
  if (!text_at(spec, "network.subdomain").empty()) {
    report->add(manifest, "network.subdomain",
                "must not be set: PET_MASTER_ADDR has the name of the TrainJob there");
  }
  bool has_trainer = false;
  for (const Value& job : list_at(spec, "replicatedJobs")) {
    if (text_at(job, fmt::format("template.metadata.labels.'{}'", kAncestor)) != "trainer") continue;
    has_trainer = true;
    if (text_at(job, "name") != "node") {
      report->add(manifest, "replicatedJobs", "the trainer's must be called 'node', found '{}'",
                  text_at(job, "name"));
    }
  }
  if (!has_trainer) report->add(manifest, "replicatedJobs", "none has the label {}: trainer", kAncestor);
  const Value* const processes = value_at(manifest.body, "spec.mlPolicy.torch.numProcPerNode");
  if (processes != nullptr && processes->integer() == nullptr && *processes != Value("gpu"))
    report->add(manifest, "spec.mlPolicy.torch.numProcPerNode", kNumberOfRanks);
}

void lint_number_of_ranks(const Manifest& manifest, const Value& trainer, LintReport* report) {
  constexpr const char* kPath = "spec.trainer.numProcPerNode";
  const Value* const processes = trainer.find("numProcPerNode");
  if (processes != nullptr && processes->integer() != nullptr) return;
  if (processes == nullptr || *processes != Value("gpu")) return report->add(manifest, kPath, kNumberOfRanks);
  if (quantity(value_at(trainer, fmt::format("resourcesPerNode.limits.'{}'", kCardResource))).value_or(0) ==
      0)
    report->add(manifest, kPath, "'gpu' is a rank for each card, and the pods ask for no {}", kCardResource);
}

// The time that kubelet gives the pods of a TrainJob: its runtime's, unless it patches that.
int64_t grace_of_train_job(const Manifest& manifest, const Value& trainer, const LintReport& report) {
  const Manifest* const runtime = runtime_of(manifest, report);
  int64_t pod_s = 30;
  if (runtime == nullptr) {
    pod_s = seconds_of_argument(trainer, "--termination_grace_s=") + 1;  // not known
  } else {
    for (const PodTemplate& pod : pod_templates(*runtime)) pod_s = grace_of(*pod.value);
  }
  for (const PatchedPod& pod : patched_pods(manifest)) {
    pod_s = integer_at(*pod.value, "spec.terminationGracePeriodSeconds", pod_s);
  }
  return pod_s;
}

void lint_train_job(const Manifest& manifest, LintReport* report) {
  const Value* const trainer = value_at(manifest.body, "spec.trainer");
  if (trainer == nullptr || trainer->object() == nullptr) {
    report->add(manifest, "spec.trainer", "is missing: without it the pods get no PET_ variables");
    return;
  }
  lint_number_of_ranks(manifest, *trainer, report);
  const std::string suffix =
      fmt::format("-node-0-{}", std::max<int64_t>(1, integer_at(*trainer, "numNodes", 1)) - 1);
  if (manifest.name().size() + suffix.size() > kMaxLabelLength) {
    report->add(manifest, "metadata.name", "'{}{}', the name of a pod, has more than {} characters",
                manifest.name(), suffix, kMaxLabelLength);
  }
  lint_grace(manifest, "spec.trainer", *trainer, grace_of_train_job(manifest, *trainer, *report), report);
  const Manifest* const runtime = runtime_of(manifest, *report);
  if (runtime == nullptr) return;
  std::vector<const Value*> pods;
  for (const PodTemplate& pod : pod_templates(*runtime)) pods.push_back(pod.value);
  for (const PatchedPod& pod : patched_pods(manifest)) pods.push_back(pod.value);
  lint_secret_file(manifest, "spec.trainer", *trainer, pods, report);
}

bool runs(const Value& container, std::string_view subcommand) {
  const Value::List words = command_of(container);
  return words.size() > 1 && words[0] == Value("tessera") && words[1] == Value(subcommand);
}

// The operator gives every pod a RANK, by its place among Master and Workers.
void lint_pytorch_job(const Manifest& manifest, LintReport* report) {
  constexpr const char* kReplicas = "spec.pytorchReplicaSpecs";
  if (value_at(manifest.body, fmt::format("{}.Master", kReplicas)) == nullptr)
    report->add(manifest, kReplicas, "has no Master: its pods get neither RANK nor the address of rank 0");
  const bool has_workers = value_at(manifest.body, fmt::format("{}.Worker", kReplicas)) != nullptr;
  bool is_ours = false;
  for (const PodTemplate& pod : pod_templates(manifest)) {
    const Value::List& containers = list_at(*pod.value, "spec.containers");
    const auto main = std::ranges::find_if(
        containers, [](const Value& each) { return text_at(each, "name") == "pytorch"; });
    if (main == containers.end()) continue;  // refused by the operator's webhook, as other numbers of Masters
    is_ours = is_ours || runs(*main, "train");
    if (has_workers && runs(*main, "launch"))
      report->add(manifest, pod.path,
                  "`tessera launch` ends at once where pods are ranks: run `tessera train`");
  }
  const double num_ranks = quantity(value_at(manifest.body, "spec.nprocPerNode")).value_or(1);
  if (is_ours && num_ranks > 1)
    report->add(manifest, "spec.nprocPerNode", "expected 1, found {}: a pod is one rank", num_ranks);
}

}  // namespace

const Manifest* runtime_of(const Manifest& train_job, const LintReport& report) {
  return report.find(text_at(train_job.body, "spec.runtimeRef.kind"),
                     text_at(train_job.body, "spec.runtimeRef.name"));
}

std::vector<PatchedPod> patched_pods(const Manifest& train_job) {
  std::vector<PatchedPod> pods;
  for (const Value& each : list_at(train_job.body, "spec.podTemplateOverrides")) {
    pods.push_back({&each, "spec.podTemplateOverrides"});
  }
  for (const Value& each : list_at(train_job.body, "spec.runtimePatches")) {
    for (const Value& job : list_at(each, "trainingRuntimeSpec.template.spec.replicatedJobs")) {
      if (const Value* const pod = value_at(job, "template.spec.template"))
        pods.push_back({pod, "spec.runtimePatches"});
    }
  }
  return pods;
}

void lint_jobs(LintReport* report) {
  for (const Manifest& each : report->manifests()) {
    const std::string kind = each.kind();
    for (const PodTemplate& pod : pod_templates(each)) {
      if (kind == "Job") lint_host_names(pod, report);
      for (const Value& container : list_at(*pod.value, "spec.containers"))
        lint_secret_file(each, pod.path, container, {pod.value}, report);
      if (pod.job == nullptr) continue;
      if (kind == "Job" || kind == "JobSet") lint_meeting(pod, report);
      for (const Value& container : list_at(*pod.value, "spec.containers")) {
        lint_grace(each, pod.path, container, grace_of(*pod.value), report);
      }
    }
    if (kind == "TrainJob") {
      lint_train_job(each, report);
    } else if (kind == "PyTorchJob") {
      lint_pytorch_job(each, report);
    } else if (kind == "JobSet") {
      if (const Value* const spec = each.body.find("spec")) lint_failure_rules(each, *spec, report);
    } else if (kind == "ClusterTrainingRuntime" || kind == "TrainingRuntime") {
      const Value* const spec = value_at(each.body, "spec.template.spec");
      if (spec == nullptr) continue;
      lint_runtime(each, *spec, report);
      lint_failure_rules(each, *spec, report);
    }
  }
}

}  // namespace tessera
