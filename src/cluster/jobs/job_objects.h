// A job and everything in the cluster that belongs to it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cluster/jobs/kubectl.h"

namespace tessera {

struct JobName {
  std::string name;
  std::string name_space;  // "" = not known
};

// The job that a user names, by a file (its name ends in .yaml, .yml or .json, or has a '/') or by its own
// name, in `name_space`, or else in that of the file, or else in training. Error(kUsage) for what cannot be a
// name, Error(kBadData) for a file that is not YAML or has no TrainJob, JobSet, Job or PyTorchJob.
JobName job_asked_for(const std::string& job, const std::string& name_space);

// Objects as `kubectl get -o json` shows them: kubeflow/trainer v1alpha1, jobset v1alpha2, batch/v1, v1,
// kubeflow.org/v1, kueue v1beta1 and v1beta2.
struct JobObjects {
  using Json = nlohmann::json;

  std::string name, name_space;
  std::string kind;  // of `top`
  Json top;          // the TrainJob, or without one the JobSet, or without that the Job or PyTorchJob
  Json jobset;       // null if there is none
  std::vector<Json> jobs;
  std::vector<Json> pods;       // the newest of each index first
  std::vector<Json> events;     // about any of these; the newest first
  std::vector<Json> workloads;  // of Kueue
  std::vector<Json> claims;     // PersistentVolumeClaims of the namespace
  std::vector<Json> nodes;      // on which pods are
  std::string log;              // the last lines of rank 0
  Json last_step;               // the last line of the run's metrics.jsonl; null if that cannot be read
  std::string unread_folder;    // of the run, where lost nodes have left no pod that could be asked; else ""
  std::vector<std::string> not_allowed;  // kinds that this user may not see
};

// Error(kNoInput) if there is no such job, and as Kubectl.
JobObjects get_job(const Kubectl& kubectl, const JobName& name);

// Return the value at a JSON pointer if it exists and has this type; else "", 0, false or an empty list.
std::string text_at(const nlohmann::json& object, const std::string& pointer);
int64_t number_at(const nlohmann::json& object, const std::string& pointer, int64_t otherwise = 0);
std::string object_name(const nlohmann::json& object);  // metadata.name
bool flag_at(const nlohmann::json& object, const std::string& pointer);
const nlohmann::json& list_at(const nlohmann::json& object, const std::string& pointer);
// status.conditions of this type, or null.
const nlohmann::json& condition(const nlohmann::json& object, const std::string& type);
bool is_true(const nlohmann::json& object, const std::string& condition_type);
// When an event was seen last.
std::string time_of(const nlohmann::json& event);
// From one time to another, both as Kubernetes writes them ("2026-01-31T12:00:00Z"); nullopt if one is not a
// time.
std::optional<double> seconds_between(const std::string& from, const std::string& to);
// The completion index of a pod, or its place among those of a PyTorchJob; -1 if it has none.
int64_t index_of(const nlohmann::json& pod);
// The node of this pod, if the cluster no longer hears from its kubelet; "" if it does.
std::string lost_node_of(const JobObjects& job, const nlohmann::json& pod);
inline bool is_terminating(const nlohmann::json& pod) {
  return !text_at(pod, "/metadata/deletionTimestamp").empty();
}

}  // namespace tessera
