// What holds up a job.
#include "support/fake_cluster.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
  make_queued({condition_of("QuotaReserved", "False", "Pending", "Preempted to accommodate a workload"),
               condition_of("Evicted", "True", "Preempted",
                            "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization "
                            "in the ClusterQueue")});
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
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("no node can be provisioned for it"), HasSubstr("no instance type")));
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
  EXPECT_THAT(run().out, AllOf(HasSubstr("the volume claim training-data does not exist"),
                               HasSubstr("tessera deploy runtime")));
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
  remove(kLogs);
  const Result result = run();
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("pod llama-node-0-1-x1z9q: exit code 78 (bad configuration): the model needs"),
            HasSubstr("FailJobSetFailurePolicyAction"), HasSubstr("it would fail the same way again")));
  EXPECT_THAT(result.out, Not(HasSubstr("a peer failed")));
}

TEST_F(Status, PeerThatFollowsAKilledPodWithinASecondIsNotTheCause) {
  for (const int code : {75, 143}) {
    change(kPods, [&](json& list) {
      make_end(&list["items"][0], code, "followed", "2026-01-31T12:10:00Z");
      make_end(&list["items"][1], 137, "", "2026-01-31T12:10:00Z");
    });
    EXPECT_THAT(run().out, AllOf(HasSubstr("exit code 137 (SIGKILL)"), Not(HasSubstr("followed")))) << code;
  }
}

// With the policy FallbackToLogsOnError the message is the end of the log.
TEST_F(Status, ErrorIsFoundInTheEndOfALog) {
  change(kTrainJob, [](json& job) {
    job["status"]["conditions"].push_back(condition_of("Failed", "True", "FailedJobs", "jobset failed"));
  });
  const auto message = [this](const std::string& log) {
    change(kPods, [&](json& list) {
      make_end(&list["items"][0], 75, "error: a peer failed", "2026-01-31T12:09:00Z");
      make_end(&list["items"][1], 74, log, "2026-01-31T12:10:01Z");
    });
    return run().out;
  };
  EXPECT_THAT(message("step 3\nerror: /data: no space left\nrun again\n"),
              HasSubstr("exit code 74 (I/O error): error: /data: no space left\n"));
  EXPECT_THAT(message("one\ntwo\n\n"), HasSubstr("(I/O error): two\n"));
  EXPECT_THAT(message("\n"), HasSubstr("(I/O error)\n"));
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
  EXPECT_THAT(result.out, AllOf(HasSubstr("failed, and is about to restart"), HasSubstr("OOMKilled"),
                                HasSubstr("restarts so far: 3, of which 2 count, of at most 10")));
  remove(kPods);
  EXPECT_EQ(run_json()["message"], "restarting (restart 3): the new pods are not there yet");
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
  EXPECT_THAT(run().out, AllOf(HasSubstr("keeps failing"), HasSubstr("(missing input): no such model")));
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
  EXPECT_THAT(run().out, AllOf(HasSubstr("running"),
                               HasSubstr("node ip-10-0-1-11.ec2.internal is unhealthy: AMX at 40 %"),
                               HasSubstr("node ip-10-0-1-10.ec2.internal is about to be removed"),
                               HasSubstr("EvictionByEvictionAPI")));
  change(kTrainJob, [](json& job) {
    job["status"]["conditions"].push_back(
        condition_of("Complete", "True", "AllJobsCompleted", "jobset completed successfully"));
  });
  EXPECT_EQ(run().code, 0);
  EXPECT_THAT(run().out, AllOf(HasSubstr("finished"), HasSubstr("last seen: step 45 of 600")));
  change(kPods, [](json& list) {
    list["items"][0]["status"]["phase"] = "Succeeded";
    list["items"][0]["status"]["containerStatuses"][0]["state"] = {
        {"terminated", {{"exitCode", 0}, {"message", "finished: step 600 of 600, in /data/runs/llama\n"}}}};
  });
  EXPECT_THAT(run().out, HasSubstr("  finished: step 600 of 600, in /data/runs/llama\n"));
}

}  // namespace
}  // namespace tessera
