// `tessera status`: its questions, what it prints, what it refuses.
#include "base/stopwatch.h"
#include "cluster/jobs/kubectl.h"
#include "expect_error.h"
#include "support/fake_cluster.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

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

TEST_F(Status, LastLineOfRank0StandsInForItsProgress) {
  write_text_file(file(kLogs), "node 0: rank 0 on host llama-node-0-0\ninfo: reading dataset 40%\x1b[K\n\n");
  EXPECT_THAT(run().out, HasSubstr("  rank 0: info: reading dataset 40%\\x1b[K\n"));
  EXPECT_EQ(run_json()["last_line"], "info: reading dataset 40%\\x1b[K");
}

TEST_F(Status, ProgressIsTheTrainJobsWhereTheLogIsNotAllowed) {
  fail(kLogs, "Error from server (Forbidden): pods \"x\" is forbidden: cannot get resource \"pods/log\"");
  change(kTrainJob, [](json& job) {
    job["status"]["trainerStatus"] = {{"progressPercentage", 12},
                                      {"estimatedRemainingSeconds", 83},
                                      {"metrics", {{{"name", "loss"}, {"value", "2.5"}}}}};
  });
  EXPECT_THAT(run().out, AllOf(HasSubstr("  12 % done, loss 2.5000, ETA 01:23\n"),
                               HasSubstr("not seen (no permission): logs\n")));
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
  EXPECT_THAT(broken.what(), HasSubstr("job.yaml:2: not YAML"));
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
  fail("events", "Error from server (Forbidden): events is forbidden");
  expect_error(ExitCode::kNoInput, {"no TrainJob, JobSet or Job 'llama'"}, [] { run(); });
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
  expect_error(ExitCode::kNoInput, {"'/no/such/kubectl' was not found"}, [] { run(); });
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
