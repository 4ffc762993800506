// Jobs, JobSets, and the training runtimes and TrainJobs of Kubeflow Trainer.
#include <algorithm>
#include <charconv>
#include <set>

#include "base/text.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/lint_rules.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

// What Kubeflow Trainer sets itself (pkg/constants: TorchRunReservedEnvNames).
constexpr std::string_view kReservedVariables[] = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK",
                                                   "PET_MASTER_ADDR", "PET_MASTER_PORT"};
constexpr std::string_view kAncestor = "trainer.kubeflow.org/trainjob-ancestor-step";

constexpr const char* kNumberOfRanks =
    "expected a number, or gpu for a rank on each card: 'auto' and 'cpu' start a rank per CPU";

bool is_runtime(const Manifest& manifest) {
  return manifest.kind() == "ClusterTrainingRuntime" || manifest.kind() == "TrainingRuntime";
}

int64_t integer_at(const Value& value, std::string_view path, int64_t otherwise) {
  const Value* const at = value_at(value, path);
  return at != nullptr && at->integer() != nullptr ? *at->integer() : otherwise;
}

void check_name_length(const Manifest& manifest, const std::string& suffix, LintReport* report) {
  const std::string name = manifest.name();
  if (name.size() + suffix.size() > kMaxLabelLength) {
    report->add(manifest, "metadata.name", "'{}{}', the name of a pod, has more than {} characters", name,
                suffix, kMaxLabelLength);
  }
  if (!name.empty() && name[0] >= '0' && name[0] <= '9') {
    report->add(manifest, "metadata.name", "begins with a digit, which the name of its Service must not");
  }
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

void lint_job(const PodTemplate& pod, LintReport* report) {
  const Value& job = *pod.job;
  const Manifest& manifest = *pod.manifest;
  const std::string policy = text_at(*pod.value, "spec.restartPolicy");
  if (policy != "Never" && policy != "OnFailure") {
    report->add(manifest, pod.path, "restartPolicy of a Job's pods is Never or OnFailure, found '{}'",
                policy);
  }
  const Value::List& rules = list_at(job, "podFailurePolicy.rules");
  if (!rules.empty() && policy != "Never") {
    report->add(manifest, pod.path, "podFailurePolicy needs restartPolicy Never, found '{}'", policy);
  }
  std::set<std::string> containers;
  for (const Value& each : list_at(*pod.value, "spec.containers")) containers.insert(text_at(each, "name"));
  for (const Value& each : list_at(*pod.value, "spec.initContainers"))
    containers.insert(text_at(each, "name"));
  std::set<int64_t> codes;
  for (const Value& rule : rules) {
    const bool has_codes = rule.find("onExitCodes") != nullptr,
               has_conditions = rule.find("onPodConditions") != nullptr;
    if (has_codes == has_conditions) {
      report->add(manifest, pod.path,
                  "a rule of podFailurePolicy needs either onExitCodes or onPodConditions");
    }
    const std::string container = text_at(rule, "onExitCodes.containerName");
    if (!container.empty() && !containers.contains(container)) {
      report->add(manifest, pod.path,
                  "a rule of podFailurePolicy names the container '{}', which does not exist", container);
    }
    int64_t previous = -1;
    for (const Value& code : list_at(rule, "onExitCodes.values")) {
      if (code.integer() == nullptr) continue;
      if (*code.integer() < previous) {
        report->add(manifest, pod.path, "exit codes of a rule must ascend: {} follows {}", *code.integer(),
                    previous);
      }
      previous = *code.integer();
      if (*code.integer() == 0 && text_at(rule, "onExitCodes.operator") == "In") {
        report->add(manifest, pod.path, "exit code 0 is not a failure");
      }
      if (!codes.insert(*code.integer()).second) {
        report->add(manifest, pod.path, "two rules of podFailurePolicy have exit code {}", *code.integer());
      }
    }
  }
  if (text_at(job, "completionMode") == "Indexed" && integer_at(job, "completions", -1) < 0) {
    report->add(manifest, pod.path, "an Indexed Job needs a number of completions");
  }
  const int64_t pod_s = integer_at(*pod.value, "spec.terminationGracePeriodSeconds", 30);
  for (const Value& container : list_at(*pod.value, "spec.containers")) {
    lint_grace(manifest, pod.path, container, pod_s, report);
  }
}

// "at index 2$" of a failure rule must be a rule of podFailurePolicy.
void lint_failure_rules(const Manifest& manifest, const Value& spec, LintReport* report) {
  size_t num_rules = 0;
  std::set<std::string> jobs;
  for (const Value& job : list_at(spec, "replicatedJobs")) {
    num_rules = std::max(num_rules, list_at(job, "template.spec.podFailurePolicy.rules").size());
    if (!jobs.insert(text_at(job, "name")).second) {
      report->add(manifest, "replicatedJobs", "'{}' appears twice", text_at(job, "name"));
    }
  }
  std::set<std::string> names;
  for (const Value& rule : list_at(spec, "failurePolicy.rules")) {
    if (!names.insert(text_at(rule, "name")).second) {
      report->add(manifest, "failurePolicy", "two rules are called '{}'", text_at(rule, "name"));
    }
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
  for (const Value& name : list_at(spec, "successPolicy.targetReplicatedJobs")) {
    if (name.string() != nullptr && !jobs.contains(*name.string())) {
      report->add(manifest, "successPolicy", "targets the replicatedJob '{}', which does not exist",
                  *name.string());
    }
  }
}

void lint_runtime(const Manifest& manifest, LintReport* report) {
  const Value* const spec = value_at(manifest.body, "spec.template.spec");
  if (spec == nullptr) return;
  if (!text_at(*spec, "network.subdomain").empty()) {
    report->add(manifest, "network.subdomain",
                "must not be set: PET_MASTER_ADDR has the name of the TrainJob there");
  }
  bool has_trainer = false;
  for (const Value& job : list_at(*spec, "replicatedJobs")) {
    const Value* const labels = value_at(job, "template.metadata.labels");
    const Value* const step = labels == nullptr ? nullptr : labels->find(kAncestor);
    if (step == nullptr || *step != Value("trainer")) continue;
    has_trainer = true;
    if (text_at(job, "name") != "node") {
      report->add(manifest, "replicatedJobs", "the trainer's must be called 'node', found '{}'",
                  text_at(job, "name"));
    }
    const Value::List& containers = list_at(job, "template.spec.template.spec.containers");
    if (std::ranges::none_of(containers, [](const Value& each) { return text_at(each, "name") == "node"; })) {
      report->add(manifest, "replicatedJobs", "the trainer's container must be called 'node'; there is none");
    }
    if (integer_at(job, "replicas", 1) != 1)
      report->add(manifest, "replicatedJobs", "the trainer needs exactly 1 replica");
  }
  if (!has_trainer) report->add(manifest, "replicatedJobs", "none has the label {}: trainer", kAncestor);
  const Value* const processes = value_at(manifest.body, "spec.mlPolicy.torch.numProcPerNode");
  if (processes != nullptr && processes->integer() == nullptr && *processes != Value("gpu"))
    report->add(manifest, "spec.mlPolicy.torch.numProcPerNode", kNumberOfRanks);
}

void lint_patched_pod(const Manifest& manifest, std::string_view path, const Value& pod, LintReport* report) {
  for (const Value& container : list_at(pod, "containers")) {
    if (text_at(container, "name") == "node" && !list_at(container, "env").empty()) {
      report->add(manifest, path,
                  "the webhook refuses variables for the container 'node': put them in trainer.env");
    }
  }
}

void lint_patches(const Manifest& manifest, LintReport* report) {
  const Value::List& overrides = list_at(manifest.body, "spec.podTemplateOverrides");
  const Value::List& patches = list_at(manifest.body, "spec.runtimePatches");
  if (!overrides.empty() && !patches.empty()) {
    report->add(
        manifest, "spec",
        "podTemplateOverrides belong to Trainer v2.1, runtimePatches to later versions: give one of them");
  }
  const Manifest* const runtime = runtime_of(manifest, *report);
  std::set<std::string> jobs = {"node"};
  if (runtime != nullptr) {
    for (const Value& job : list_at(runtime->body, "spec.template.spec.replicatedJobs"))
      jobs.insert(text_at(job, "name"));
  }
  const auto check_job = [&](std::string_view path, const Value& name) {
    if (!jobs.contains(text_at(name, "name"))) {
      report->add(manifest, path, "the runtime has no replicatedJob '{}'", text_at(name, "name"));
    }
  };
  for (const Value& each : overrides) {
    for (const Value& job : list_at(each, "targetJobs")) check_job("spec.podTemplateOverrides", job);
  }
  for (const Value& each : patches) {
    const std::string manager = text_at(each, "manager");
    if (manager.find('/') == std::string::npos) {
      report->add(manifest, "spec.runtimePatches",
                  "manager is a domain and a path, such as tessera/deploy, found '{}'", manager);
    }
    for (const Value& job : list_at(each, "trainingRuntimeSpec.template.spec.replicatedJobs")) {
      check_job("spec.runtimePatches", job);
    }
  }
  for (const PatchedPod& patch : patched_pods(manifest)) {
    if (const Value* const pod = patch.value->find("spec"))
      lint_patched_pod(manifest, patch.path, *pod, report);
  }
}

void lint_number_of_ranks(const Manifest& manifest, const Value& trainer, LintReport* report) {
  constexpr const char* kPath = "spec.trainer.numProcPerNode";
  const Value* const processes = trainer.find("numProcPerNode");
  if (processes != nullptr && processes->integer() != nullptr) return;
  if (processes == nullptr || *processes != Value("gpu")) return report->add(manifest, kPath, kNumberOfRanks);
  if (!list_at(manifest.body, "spec.runtimePatches").empty())
    report->add(manifest, kPath, "expected a number: from Trainer v2.2 on 'gpu' is no value");
  const Value* const limits = value_at(trainer, "resourcesPerNode.limits");
  if (quantity(limits == nullptr ? nullptr : limits->find(kCardResource)).value_or(0) == 0)
    report->add(manifest, kPath, "'gpu' is a rank for each card, and the pods ask for no {}", kCardResource);
}

void lint_train_job(const Manifest& manifest, LintReport* report) {
  const Value* const trainer = value_at(manifest.body, "spec.trainer");
  if (trainer == nullptr || trainer->object() == nullptr) {
    report->add(manifest, "spec.trainer", "is missing: without it the pods get no PET_ variables");
    return;
  }
  lint_number_of_ranks(manifest, *trainer, report);
  for (const Value& variable : list_at(*trainer, "env")) {
    if (std::ranges::find(kReservedVariables, text_at(variable, "name")) != std::end(kReservedVariables)) {
      report->add(manifest, "spec.trainer.env", "{} is reserved: Kubeflow Trainer sets it",
                  text_at(variable, "name"));
    }
  }
  for (const char* what : {"cpu", "memory"}) {
    const Value* const wanted = value_at(*trainer, fmt::format("resourcesPerNode.requests.{}", what));
    const auto limit = quantity(value_at(*trainer, fmt::format("resourcesPerNode.limits.{}", what)));
    if (!limit) {
      report->add(manifest, "spec.trainer.resourcesPerNode",
                  "there is no limit of {}, so pods are not Guaranteed", what);
    } else if (wanted != nullptr && quantity(wanted) != limit) {
      report->add(manifest, "spec.trainer.resourcesPerNode",
                  "requests and limits of {} differ, so pods are not Guaranteed", what);
    }
  }
  check_name_length(manifest,
                    fmt::format("-node-0-{}", std::max<int64_t>(1, integer_at(*trainer, "numNodes", 1)) - 1),
                    report);
  const Manifest* const runtime = runtime_of(manifest, *report);
  int64_t pod_s = 30;
  if (runtime == nullptr) {
    pod_s = seconds_of_argument(*trainer, "--termination_grace_s=") + 1;  // not known
  } else {
    for (const PodTemplate& pod : pod_templates(*runtime)) {
      pod_s = integer_at(*pod.value, "spec.terminationGracePeriodSeconds", 30);
    }
  }
  for (const Value& patch : list_at(manifest.body, "spec.runtimePatches")) {
    for (const Value& job : list_at(patch, "trainingRuntimeSpec.template.spec.replicatedJobs")) {
      pod_s = integer_at(job, "template.spec.template.spec.terminationGracePeriodSeconds", pod_s);
    }
  }
  lint_grace(manifest, "spec.trainer", *trainer, pod_s, report);
  lint_patches(manifest, report);
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
    for (const PodTemplate& pod : pod_templates(each)) {
      if (pod.job != nullptr) lint_job(pod, report);
      if (each.kind() == "Job") lint_host_names(pod, report);
    }
    if (each.kind() == "JobSet") {
      if (const Value* const spec = each.body.find("spec")) lint_failure_rules(each, *spec, report);
      for (const Value& job : list_at(each.body, "spec.replicatedJobs")) {
        const int64_t last = std::max<int64_t>(1, integer_at(job, "template.spec.parallelism", 1)) - 1;
        check_name_length(each, fmt::format("-{}-0-{}", text_at(job, "name"), last), report);
      }
    } else if (each.kind() == "Job" && text_at(each.body, "spec.completionMode") == "Indexed") {
      check_name_length(
          each, fmt::format("-{}", std::max<int64_t>(1, integer_at(each.body, "spec.completions", 1)) - 1),
          report);
    }
  }
}

void lint_train_jobs(LintReport* report) {
  for (const Manifest& each : report->manifests()) {
    if (is_runtime(each)) {
      lint_runtime(each, report);
      if (const Value* const spec = value_at(each.body, "spec.template.spec"))
        lint_failure_rules(each, *spec, report);
    } else if (each.kind() == "TrainJob") {
      lint_train_job(each, report);
    }
  }
}

}  // namespace tessera
