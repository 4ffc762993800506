// For tests of `tessera status`: tests/data/kubernetes has a kubectl that answers from files, and the objects
// of a TrainJob with two running pods. Each test changes what is different.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/command.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {

inline constexpr char kTrainJob[] = "trainjobs.trainer.kubeflow.org";
inline constexpr char kJobSet[] = "jobsets.jobset.x-k8s.io";
inline constexpr char kJobs[] = "jobs.batch-of-jobset";
inline constexpr char kPods[] = "pods-of-jobset";
inline constexpr char kWorkloads[] = "workloads.kueue.x-k8s.io";
inline constexpr char kLogs[] = "logs";
inline constexpr char kPod0[] = "llama-node-0-0-x0z9q";

inline nlohmann::json condition_of(const char* type, const char* status, const char* reason,
                                   const std::string& message) {
  return {{"type", type}, {"status", status}, {"reason", reason}, {"message", message}};
}

class Status : public testing::Test {
 protected:
  Status() {
    std::filesystem::copy(data_folder() / "kubernetes", folder_.path(),
                          std::filesystem::copy_options::recursive);
    setenv("KUBECTL", (folder_ / "kubectl").c_str(), 1);
    setenv("KUBECTL_ANSWERS", folder_.path().c_str(), 1);
  }
  ~Status() override {
    unsetenv("KUBECTL");
    unsetenv("KUBECTL_ANSWERS");
  }

  std::filesystem::path file(const std::string& kind) const {
    return folder_ / (kind + (kind == kLogs ? ".txt" : ".json"));
  }
  template <typename Change>
  void change(const std::string& kind, const Change& change) const {
    nlohmann::json object = nlohmann::json::parse(read_text_file(file(kind)));
    change(object);
    write_text_file(file(kind), object.dump());
  }
  // Changes both pods.
  template <typename Change>
  void change_pods(const Change& change_pod) const {
    change(kPods, [&](nlohmann::json& list) {
      for (nlohmann::json& pod : list["items"]) change_pod(pod);
    });
  }
  void remove(const std::string& kind) const { std::filesystem::remove(file(kind)); }
  void fail(const std::string& kind, const std::string& message) const {
    write_text_file(folder_ / (kind + ".err"), message + "\n");
  }
  void add_event(const std::string& object, const std::string& reason, const std::string& message,
                 const std::string& component, const std::string& time = "2026-01-31T13:00:00Z") const {
    change("events", [&](nlohmann::json& list) {
      list["items"].push_back({{"involvedObject", {{"kind", "Pod"}, {"name", object}}},
                               {"reason", reason},
                               {"message", message},
                               {"lastTimestamp", time},
                               {"source", {{"component", component}}}});
    });
  }
  // As the scheduler leaves pods that fit on no node.
  void make_unschedulable() const {
    change_pods([](nlohmann::json& pod) {
      pod["spec"].erase("nodeName");
      pod["status"] = {
          {"phase", "Pending"},
          {"conditions",
           {condition_of("PodScheduled", "False", "Unschedulable",
                         "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")}}};
    });
    remove(kLogs);
  }
  // Waiting as the kubelet reports it.
  void make_wait(const std::string& reason, const std::string& message) const {
    change_pods([&](nlohmann::json& pod) {
      pod["status"]["phase"] = "Pending";
      pod["status"]["containerStatuses"][0]["state"] = {
          {"waiting", {{"reason", reason}, {"message", message}}}};
    });
    remove(kLogs);
  }
  void make_end(nlohmann::json* pod, int code, const std::string& message, const std::string& time) const {
    (*pod)["status"]["phase"] = "Failed";
    (*pod)["status"]["containerStatuses"][0]["state"] = {
        {"terminated",
         {{"exitCode", code}, {"reason", "Error"}, {"message", message}, {"finishedAt", time}}}};
  }
  // Suspended, with a Workload in this condition and no pods.
  void make_queued(const std::vector<nlohmann::json>& conditions) const {
    change(kTrainJob, [](nlohmann::json& job) { job["spec"]["suspend"] = true; });
    change(kWorkloads, [&](nlohmann::json& list) { list["items"][0]["status"]["conditions"] = conditions; });
    for (const char* const kind : {kPods, kJobs, kJobSet, kLogs}) remove(kind);
  }

  struct Result {
    int code = 0;
    std::string out;
  };
  static Result run(std::vector<std::string> arguments = {"llama"}) {
    arguments.insert(arguments.begin(), "status");
    testing::internal::CaptureStdout();
    Result result;
    try {
      run_program(arguments);
    } catch (const ResultCode& end) {
      result.code = end.code;
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    result.out = testing::internal::GetCapturedStdout();
    return result;
  }
  static nlohmann::json run_json() { return nlohmann::json::parse(run({"llama", "--json"}).out); }

  const TestFolder folder_;
};

}  // namespace tessera
