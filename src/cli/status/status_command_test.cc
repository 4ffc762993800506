// The cluster is tests/data/kubernetes: a kubectl that answers from files, and the objects of a TrainJob with
// two running pods. Each test changes what is different.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/stopwatch.h"
#include "cli/app.h"
#include "cli/status/diagnosis.h"
#include "expect_error.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kTrainJob[] = "trainjobs.trainer.kubeflow.org";
constexpr char kJobSet[] = "jobsets.jobset.x-k8s.io";
constexpr char kJobs[] = "jobs.batch-of-jobset";
constexpr char kPods[] = "pods-of-jobset";
constexpr char kWorkloads[] = "workloads.kueue.x-k8s.io";
constexpr char kPod0[] = "llama-node-0-0-x0z9q";

json condition_of(const char* type, const char* status, const char* reason, const std::string& message) {
  return {{"type", type}, {"status", status}, {"reason", reason}, {"message", message}};
}

class Status : public testing::Test {
 protected:
  Status() {
    fs::copy(data_folder() / "kubernetes", folder_.path(), fs::copy_options::recursive);
    setenv("KUBECTL", (folder_ / "kubectl").c_str(), 1);
    setenv("KUBECTL_ANSWERS", folder_.path().c_str(), 1);
  }
  ~Status() override {
    unsetenv("KUBECTL");
    unsetenv("KUBECTL_ANSWERS");
  }

  fs::path file(const std::string& kind) const { return folder_ / (kind + ".json"); }
  template <typename Change>
  void change(const std::string& kind, const Change& change) const {
    json object = json::parse(read_text_file(file(kind)));
    change(object);
    write_text_file(file(kind), object.dump());
  }
  // Of both pods.
  template <typename Change>
  void change_pods(const Change& change_pod) const {
    change(kPods, [&](json& list) {
      for (json& pod : list["items"]) change_pod(pod);
    });
  }
  void remove(const std::string& kind) const { fs::remove(file(kind)); }
  void fail(const std::string& kind, const std::string& message) const {
    write_text_file(folder_ / (kind + ".err"), message + "\n");
  }
  void add_event(const std::string& object, const std::string& reason, const std::string& message,
                 const std::string& component, const std::string& time = "2026-01-31T13:00:00Z") const {
    change("events", [&](json& list) {
      list["items"].push_back({{"involvedObject", {{"kind", "Pod"}, {"name", object}}},
                               {"reason", reason},
                               {"message", message},
                               {"lastTimestamp", time},
                               {"source", {{"component", component}}}});
    });
  }
  // As the scheduler leaves pods that fit on no node.
  void make_unschedulable() const {
    change_pods([](json& pod) {
      pod["spec"].erase("nodeName");
      pod["status"] = {
          {"phase", "Pending"},
          {"conditions",
           {condition_of("PodScheduled", "False", "Unschedulable",
                         "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")}}};
    });
    remove("logs");
  }
  // Waiting as the kubelet reports it.
  void make_wait(const std::string& reason, const std::string& message) const {
    change_pods([&](json& pod) {
      pod["status"]["phase"] = "Pending";
      pod["status"]["containerStatuses"][0]["state"] = {
          {"waiting", {{"reason", reason}, {"message", message}}}};
    });
    remove("logs");
  }
  void make_end(json* pod, int code, const std::string& message, const std::string& time) const {
    (*pod)["status"]["phase"] = "Failed";
    (*pod)["status"]["containerStatuses"][0]["state"] = {
        {"terminated",
         {{"exitCode", code}, {"reason", "Error"}, {"message", message}, {"finishedAt", time}}}};
  }
  // Suspended, with a Workload in this condition and no pods.
  void make_queued(const std::vector<json>& conditions) const {
    change(kTrainJob, [](json& job) { job["spec"]["suspend"] = true; });
    change(kWorkloads, [&](json& list) { list["items"][0]["status"]["conditions"] = conditions; });
    for (const char* const kind : {kPods, kJobs, kJobSet, "logs"}) remove(kind);
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
      result.code = run_program(arguments);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    result.out = testing::internal::GetCapturedStdout();
    return result;
  }
  static json run_json() { return json::parse(run({"llama", "--json"}).out); }

  const TestFolder folder_;
};

TEST_F(Status, RunningJobTellsItsProgress) {
  const Result result = run();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out,
            "llama (TrainJob in namespace training): running\n"
            "  step 45 of 600 (7 %), loss 3.1416, ETA 01:02:03\n"
            "  2 pods on ip-10-0-1-10.ec2.internal, ip-10-0-1-11.ec2.internal\n");
  EXPECT_THAT(
      read_text_file(folder_ / "calls"),
      AllOf(HasSubstr("logs llama-node-0-0-x0z9q --container node --namespace training"),
            HasSubstr("get pods --selector=jobset.sigs.k8s.io/jobset-name=llama --namespace training")));
  const json object = run_json();
  EXPECT_EQ(object["state"], "running");
  EXPECT_EQ(object["exit_code"], 0);
  EXPECT_EQ(object["progress"],
            json({{"step", 45}, {"max_steps", 600}, {"percent", 7}, {"loss", 3.1416}, {"eta", "01:02:03"}}));
  EXPECT_EQ(object["pods"]["running"], 2);
}

TEST_F(Status, ProgressIsTheTrainJobsWhereTheLogIsNotAllowed) {
  fail("logs", "Error from server (Forbidden): pods \"x\" is forbidden: cannot get resource \"pods/log\"");
  change(kTrainJob, [](json& job) {
    job["status"]["trainerStatus"] = {{"progressPercentage", 12},
                                      {"estimatedRemainingSeconds", 83},
                                      {"metrics", {{{"name", "loss"}, {"value", "2.5"}}}}};
  });
  EXPECT_THAT(run().out, HasSubstr("  12 % done, loss 2.5000, ETA 01:23\n"));
}

TEST_F(Status, FileNamesTheJobAndItsNamespace) {
  const std::string path = folder_.write("job.yaml",
                                         "apiVersion: v1\nkind: Secret\nmetadata: {name: llama-rendezvous}\n"
                                         "---\n# the job\nkind: TrainJob\n"
                                         "metadata: {name: llama, namespace: team-a}\n---\n");
  EXPECT_EQ(run({path}).code, 0);
  EXPECT_THAT(read_text_file(folder_ / "calls"), HasSubstr(" llama --namespace team-a "));
  fs::remove(folder_ / "calls");
  run({path, "--namespace", "team-b"});
  EXPECT_THAT(read_text_file(folder_ / "calls"), HasSubstr(" llama --namespace team-b "));
}

TEST_F(Status, FilesWithoutAJobAreRefused) {
  const auto refusal_of = [&](const std::string& text) {
    return error_of([&] { run({folder_.write("job.yaml", text)}); });
  };
  EXPECT_THAT(refusal_of("kind: Service\nmetadata: {name: a}\n").what(),
              HasSubstr("expected a TrainJob, JobSet or Job with a name, found none"));
  EXPECT_THAT(refusal_of("- 1\n---\n2\n---\n").what(), HasSubstr("found none"));
  const Error broken = refusal_of("kind: TrainJob\nmetadata: {name: [}\n");
  EXPECT_EQ(broken.code(), ExitCode::kBadData);
  EXPECT_THAT(broken.what(), HasSubstr("job.yaml:2: "));
  EXPECT_THAT(refusal_of("kind: Job\nmetadata: {name: '--all'}\n").what(), HasSubstr("found '--all'"));
  expect_error(ExitCode::kNoInput, {"missing.yaml"}, [] { run({"missing.yaml"}); });
  expect_error(ExitCode::kUsage, {"expected the name of an object"}, [] { run({"llama;rm"}); });
}

TEST_F(Status, JobSetsAndJobsNeedNoKubeflow) {
  fail(kTrainJob, "error: the server doesn't have a resource type \"trainjobs\"");
  fail(kWorkloads, "error: the server doesn't have a resource type \"workloads\"");
  EXPECT_THAT(run().out, HasSubstr("llama (JobSet in namespace training): running\n"));
  // An Indexed Job: its pods have the label of the Job.
  fail(kJobSet, "error: the server doesn't have a resource type \"jobsets\"");
  const json jobs = json::parse(read_text_file(file(kJobs)));
  write_text_file(file("jobs.batch"), jobs["items"][0].dump());
  fs::rename(file(kPods), file("pods-of-job"));
  remove(kJobs);
  const Result result = run();
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("llama (Job in namespace training): running\n"), HasSubstr("step 45 of 600")));
  EXPECT_EQ(result.code, 0);
}

TEST_F(Status, QueuedJobNamesTheResourceThatIsShort) {
  make_queued({condition_of("QuotaReserved", "False", "Pending",
                            "couldn't assign flavors to pod set node: insufficient unused quota for cpu in "
                            "flavor cpu-amx, 64 more needed")});
  const Result result = run();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("waiting for quota in queue training"),
                                HasSubstr("insufficient unused quota for cpu in flavor cpu-amx, 64 more")));
}

TEST_F(Status, QueueThatCanNeverAdmitNeedsSomebody) {
  make_queued({condition_of(
      "QuotaReserved", "False", "Pending",
      "couldn't assign flavors to pod set node: insufficient quota for cpu in flavor cpu-amx, previously "
      "considered podsets requests (0) + current podset request (128) > maximum capacity (96)")});
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, HasSubstr("queue training can never admit it"));
  make_queued({condition_of("QuotaReserved", "False", "Inadmissible", "LocalQueue training doesn't exist")});
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, AllOf(HasSubstr("LocalQueue training doesn't exist"), HasSubstr("deploy queue")));
  change(kWorkloads, [](json& list) { list["items"] = json::array(); });
  EXPECT_THAT(run().out, HasSubstr("there is no Workload of this job"));
}

TEST_F(Status, WorkloadsOfOtherJobsDoNotCount) {
  make_queued({condition_of("QuotaReserved", "False", "Pending", "mine")});
  change(kWorkloads, [](json& list) {
    json other = list["items"][0];
    other["metadata"]["ownerReferences"][0]["uid"] = "another";
    other["status"]["conditions"][0]["message"] = "of another";
    list["items"].insert(list["items"].begin(), other);
  });
  EXPECT_THAT(run().out, AllOf(HasSubstr("mine"), Not(HasSubstr("another"))));
}

TEST_F(Status, PreemptedJobIsQueuedAgain) {
  make_queued(
      {condition_of("QuotaReserved", "False", "Pending", "Preempted to accommodate a workload"),
       condition_of("Evicted", "True", "Preempted",
                    "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization in "
                    "the ClusterQueue")});
  const json object = run_json();
  EXPECT_EQ(object["state"], "preempted");
  EXPECT_EQ(object["exit_code"], 1);
  EXPECT_THAT(object["details"][0], HasSubstr("due to prioritization"));
  make_queued({condition_of("QuotaReserved", "False", "Pending", ""),
               condition_of("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout")});
  EXPECT_THAT(run().out, AllOf(HasSubstr("not all ready in time"), HasSubstr("15m or more")));
}

TEST_F(Status, AdmissionChecksAndDeactivationAreNamed) {
  make_queued({condition_of("QuotaReserved", "True", "QuotaReserved", "Quota reserved")});
  change(kWorkloads, [](json& list) {
    list["items"][0]["status"]["admissionChecks"] = {
        {{"name", "capacity"}, {"state", "Pending"}, {"message", "no provisioning yet"}}};
  });
  EXPECT_THAT(run().out, HasSubstr("admission check capacity is Pending: no provisioning yet"));
  change(kWorkloads, [](json& list) { list["items"][0]["spec"]["active"] = false; });
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, HasSubstr("deactivated"));
}

TEST_F(Status, SuspendedJobWithoutAQueueTellsTheCommand) {
  make_queued({});
  change(kTrainJob, [](json& job) { job["metadata"].erase("labels"); });
  fail(kWorkloads, "error: the server doesn't have a resource type \"workloads\"");
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, HasSubstr("-> kubectl patch TrainJob llama --namespace training"));
}

TEST_F(Status, NodesAreOnTheirWayOrNot) {
  make_unschedulable();
  Result result = run();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("waiting for nodes: 2 of 2 pods without one"),
                                HasSubstr("didn't match Pod's node affinity"),
                                HasSubstr("neither Karpenter nor an autoscaler")));
  add_event(
      kPod0, "FailedScheduling",
      "Failed to schedule pod, incompatible with nodepool \"cpu-amx\", no instance type satisfied resources",
      "karpenter");
  result = run();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("no node can be made for it"), HasSubstr("no instance type")));
  // A pod of the other replica set of the same name does not matter, and what was said later does.
  add_event("somebody-else", "Nominated", "Pod should schedule on: nodeclaim/other", "karpenter",
            "2026-01-31T15:00:00Z");
  EXPECT_EQ(run().code, 2);
  add_event(kPod0, "Nominated", "Pod should schedule on: nodeclaim/cpu-amx-x7k2p", "karpenter",
            "2026-01-31T14:00:00Z");
  result = run();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("karpenter: Pod should schedule on: nodeclaim/cpu-amx-x7k2p"));
}

TEST_F(Status, ImageThatCannotBePulled) {
  make_wait("ImagePullBackOff", "Back-off pulling image \"registry.example/tessera:1.0\"");
  add_event(
      kPod0, "Failed",
      "Failed to pull image \"registry.example/tessera:1.0\": rpc error: code = NotFound desc = not found",
      "kubelet");
  const Result result = run();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, AllOf(HasSubstr("the image cannot be pulled"), HasSubstr("ImagePullBackOff"),
                                HasSubstr("code = NotFound")));
}

TEST_F(Status, ContainerWithoutItsSecret) {
  make_wait("CreateContainerConfigError", "secret \"hf-token\" not found");
  EXPECT_THAT(run().out, AllOf(HasSubstr("a container cannot be created"),
                               HasSubstr("secret \"hf-token\" not found"), HasSubstr("create the Secret")));
}

TEST_F(Status, VolumesThatAreMissingUnboundOrNotMounted) {
  make_wait("ContainerCreating", "");
  add_event(kPod0, "FailedMount", "MountVolume.SetUp failed for volume \"fsx-data\": connection timed out",
            "kubelet");
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, AllOf(HasSubstr("a volume cannot be mounted"), HasSubstr("connection timed out")));
  const auto set_claim = [&](const char* phase) {
    change("persistentvolumeclaims", [&](json& list) { list["items"][0]["status"]["phase"] = phase; });
  };
  set_claim("Lost");
  EXPECT_THAT(run().out, HasSubstr("the volume claim training-data is not bound (Lost)"));
  set_claim("Pending");
  add_event("training-data", "ProvisioningFailed", "storageclass.storage.k8s.io \"fsx\" not found",
            "persistentvolume-controller");
  EXPECT_THAT(run().out, AllOf(HasSubstr("not bound (Pending)"), HasSubstr("\"fsx\" not found")));
  change("persistentvolumeclaims", [](json& list) { list["items"] = json::array(); });
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, HasSubstr("the volume claim training-data does not exist"));
}

// A claim of a storage class that waits for its first consumer is bound after the pod has a node.
TEST_F(Status, ClaimThatWaitsForANodeIsNotTheProblem) {
  make_unschedulable();
  change("persistentvolumeclaims", [](json& list) { list["items"][0]["status"]["phase"] = "Pending"; });
  EXPECT_EQ(run_json()["state"], "no_nodes");
}

TEST_F(Status, FailedJobTellsTheFirstCause) {
  change(kTrainJob, [](json& job) {
    job["status"]["conditions"].push_back(
        condition_of("Failed", "True", "FailJobSetFailurePolicyAction",
                     "applying FailJobSet failure policy action (first failed job: llama-node-0)"));
  });
  change(kPods, [this](json& list) {
    make_end(&list["items"][0], 75, "exit code 75: a peer failed", "2026-01-31T12:10:00Z");
    make_end(&list["items"][1], 78, "exit code 78: the model needs 200 GiB, 120 GiB are free",
             "2026-01-31T12:10:01Z");
  });
  remove("logs");
  const Result result = run();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("pod llama-node-0-1-x1z9q: exit code 78 (bad configuration): the model needs"),
                    HasSubstr("FailJobSetFailurePolicyAction"), HasSubstr("the same would happen again")));
  EXPECT_THAT(result.out, Not(HasSubstr("a peer failed")));
}

TEST_F(Status, RestartingJobCountsItsRestarts) {
  change(kJobSet, [](json& jobset) {
    jobset["status"]["restarts"] = 3;
    jobset["status"]["restartsCountTowardsMax"] = 2;
  });
  change(kPods, [this](json& list) {
    json& end = list["items"][0];
    make_end(&end, 137, "", "2026-01-31T12:10:00Z");
    end["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled";
  });
  const Result result = run();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("failed, and is about to start again"), HasSubstr("OOMKilled"),
                                HasSubstr("restarts so far: 3, of which 2 count, of at most 10")));
  remove(kPods);
  EXPECT_EQ(run_json()["state"], "restarting");
}

TEST_F(Status, CrashLoopIsNotWaitedFor) {
  change(kPods, [](json& list) {
    json& status = list["items"][0]["status"];
    status["containerStatuses"][0]["state"] = {{"waiting", {{"reason", "CrashLoopBackOff"}}}};
    status["containerStatuses"][0]["lastState"] = {
        {"terminated", {{"exitCode", 66}, {"message", "exit code 66: no such model"}}}};
    status["phase"] = "Pending";
  });
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out,
              AllOf(HasSubstr("fails again and again"), HasSubstr("(missing input): no such model")));
}

TEST_F(Status, NodeCheckThatFailsIsNamed) {
  change_pods([](json& pod) {
    pod["status"]["phase"] = "Pending";
    pod["status"]["containerStatuses"][0]["state"] = {{"waiting", {{"reason", "PodInitializing"}}}};
    pod["status"]["initContainerStatuses"] = {
        {{"name", "node-check"},
         {"state", {{"terminated", {{"exitCode", 1}, {"message", "memory: 60 GB/s, expected 190\n"}}}}}}};
  });
  EXPECT_THAT(run().out, HasSubstr("init container node-check: exit code 1: memory: 60 GB/s, expected 190"));
}

TEST_F(Status, RefusedPodsNameTheController) {
  change(kPods, [](json& list) { list["items"] = json::array(); });
  add_event(
      "llama-node-0", "FailedCreate",
      "Error creating: pods \"llama-node-0-0\" is forbidden: violates PodSecurity \"restricted:latest\"",
      "job-controller");
  EXPECT_EQ(run().code, 2);
  EXPECT_THAT(run().out, AllOf(HasSubstr("the cluster refuses its pods"), HasSubstr("violates PodSecurity")));
}

TEST_F(Status, FinishedJobAndDisruptionsAreToldAsWell) {
  change("nodes", [](json& list) {
    list["items"][1]["status"]["conditions"][1]["status"] = "True";
    list["items"][1]["status"]["conditions"][1]["message"] = "AMX at 40 % of the fleet's median";
    list["items"][0]["spec"]["taints"].push_back(
        {{"key", "karpenter.sh/disrupted"}, {"effect", "NoSchedule"}});
  });
  change(kPods, [](json& list) {
    list["items"][0]["status"]["conditions"].push_back(
        condition_of("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting"));
  });
  EXPECT_THAT(
      run().out,
      AllOf(HasSubstr("running"), HasSubstr("node ip-10-0-1-11.ec2.internal is unhealthy: AMX at 40 %"),
            HasSubstr("node ip-10-0-1-10.ec2.internal is about to go"), HasSubstr("EvictionByEvictionAPI")));
  change(kTrainJob, [](json& job) {
    job["status"]["conditions"].push_back(
        condition_of("Complete", "True", "AllJobsCompleted", "jobset completed successfully"));
  });
  EXPECT_EQ(run().code, 0);
  EXPECT_THAT(run().out, AllOf(HasSubstr("finished"), HasSubstr("last seen: step 45 of 600")));
}

TEST_F(Status, WhatMayNotBeSeenIsSaid) {
  for (const char* const kind : {"events", "nodes", "persistentvolumeclaims"})
    fail(kind, fmt::format("Error from server (Forbidden): {0} is forbidden: User \"dev\" cannot list "
                           "resource \"{0}\" in API group \"\" at the cluster scope",
                           kind));
  const Result result = run();
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("not seen (no permission): events, persistentvolumeclaims, nodes\n"));
}

TEST_F(Status, NoClusterNoAccessNoJobAndNoKubectlAreOneLine) {
  for (const char* const kind : {kTrainJob, kJobSet}) remove(kind);
  expect_error(ExitCode::kNoInput, {"no TrainJob, JobSet or Job 'llama' in namespace training"},
               [] { run(); });
  fail(kTrainJob, "Error from server (Forbidden): trainjobs.trainer.kubeflow.org \"llama\" is forbidden");
  expect_error(ExitCode::kBadConfig, {"this user may not see trainjobs", "kubectl auth can-i"},
               [] { run(); });
  fail(kTrainJob,
       "E0131 12:00:00 memcache.go:265] couldn't get current server API group list\n"
       "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout");
  expect_error(ExitCode::kIoError, {"the cluster cannot be reached", "i/o timeout"}, [] { run(); });
  fail(kTrainJob,
       "The connection to the server localhost:8080 was refused - did you specify the right host?");
  expect_error(ExitCode::kBadConfig, {"kubectl has no cluster", "KUBECONFIG"}, [] { run(); });
  fail(kTrainJob, "error: You must be logged in to the server (Unauthorized)");
  expect_error(ExitCode::kBadConfig, {"not logged in"}, [] { run(); });
  fail(kTrainJob, "error: something new \x1b[31m");
  expect_error(ExitCode::kIoError, {"kubectl ended with code 1: error: something new \\x1b"}, [] { run(); });
  setenv("KUBECTL", "/no/such/kubectl", 1);
  expect_error(ExitCode::kNoInput, {"KUBECTL: '/no/such/kubectl' was not found"}, [] { run(); });
  setenv("KUBECTL", "no-such-kubectl", 1);
  expect_error(ExitCode::kNoInput, {"'no-such-kubectl' was not found"}, [] { run(); });
}

TEST_F(Status, StrangeAnswersAreErrors) {
  write_text_file(file(kTrainJob), "[1, 2]");
  expect_error(ExitCode::kIoError, {"expected an object as JSON, found '[1, 2]'"}, [] { run(); });
  write_text_file(file(kTrainJob), "{\"kind\": ");
  expect_error(ExitCode::kIoError, {"expected an object as JSON"}, [] { run(); });
  // Objects in which nothing is what it should be.
  write_text_file(file(kTrainJob),
                  R"({"metadata": 1, "spec": [], "status": {"conditions": [1, {"type": 2}]}})");
  write_text_file(file(kPods),
                  R"({"items": [7, {"metadata": [], "status": {"containerStatuses": [3, {"state": 1}],
      "phase": "Pending", "conditions": {}}, "spec": {"volumes": {"a": 1}, "containers": 4}}, null]})");
  write_text_file(file("events"), R"({"items": [{"involvedObject": 3, "reason": []}, []]})");
  write_text_file(file(kJobSet), R"({"status": {"restarts": "many"}})");
  EXPECT_EQ(run().code, 1);
}

TEST_F(Status, KubectlThatHangsIsEnded) {
  write_text_file(folder_ / "sleeps", "");
  const Stopwatch time;
  const Kubectl kubectl(process_environment(), std::chrono::seconds(1));
  expect_error(ExitCode::kIoError, {"kubectl has not answered within 1 s"}, [&] {
    kubectl.run({{"get", "pods"}, {"get", "events"}});
  });
  EXPECT_LT(time.seconds(), 20);
}

}  // namespace
}  // namespace tessera
