#include "cluster/deploy/planned_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JobRun run_on(const char* instance, RunSettings settings = {}) {
  settings.model.folder = "org/model";
  JobRun run(settings);
  run.instance = find_instance(shipped_catalogue(), instance);
  run.config = preset_config("15m");
  run.config.vocab_size = 32000;
  return run;
}

JobSettings completed(const JobRun& run, int num_nodes = 2) {
  JobSettings job;
  job.name = "job";
  job.num_nodes = num_nodes;
  JobNodes nodes;
  nodes.instance = run.instance.name;
  place_job(nodes, run.instance, &job);
  complete_job(run, &job);
  return job;
}

TEST(JobName, IsTheModelsUnlessGiven) {
  EXPECT_EQ(job_name("mine", "org/Model-1.5B", JobKind::kJob, 1), "mine");
  EXPECT_EQ(job_name("", "org/Model-1.5B", JobKind::kJob, 1), "model-1-5b");
  EXPECT_EQ(job_name("", "org/7b", JobKind::kJob, 1), "train") << "a Service's name begins with a letter";
  EXPECT_EQ(job_name("", "???", JobKind::kJob, 1), "train");
}

TEST(JobName, LeavesRoomForWhatIsAppendedToIt) {
  const std::string suffix = pod_suffix(JobKind::kTrainerV21, 4);
  EXPECT_EQ(job_name("", std::string(100, 'm'), JobKind::kTrainerV21, 4),
            std::string(63 - suffix.size(), 'm'));
  expect_error(ExitCode::kUsage, {"--name"},
               [] { job_name(std::string(60, 'n'), "m", JobKind::kTrainerV21, 4); });
  expect_error(ExitCode::kUsage, {"begins with a letter", "'7b'"},
               [] { job_name("7b", "m", JobKind::kJob, 1); });
}

TEST(PlannedJob, HasTheArgumentsOfItsLayout) {
  const JobSettings job = completed(run_on("r7i.16xlarge"));
  EXPECT_THAT(job.train_arguments, Contains("--resume_from_checkpoint=auto"));
  EXPECT_THAT(job.train_arguments, Contains("--output_dir=/data/runs/job"));
  EXPECT_THAT(job.train_arguments, Contains(StartsWith("--per_device_train_batch_size=")));
  EXPECT_THAT(job.train_arguments, Contains(StartsWith("--zero_stage=")));
}

TEST(PlannedJob, KeepsTheStageAndRowsThatWereGiven) {
  RunSettings settings;
  settings.sharding.stage = 3;
  settings.sources.given["zero_stage"] = {};
  settings.batch.rows_per_device = 2;
  settings.sources.given["per_device_train_batch_size"] = {};
  const JobSettings job = completed(run_on("r7i.16xlarge", settings));
  EXPECT_THAT(job.train_arguments, Contains("--zero_stage=3"));
  EXPECT_THAT(job.train_arguments, Contains("--per_device_train_batch_size=2"));
}

TEST(PlannedJob, SaysWhatWasPlanned) {
  const JobSettings job = completed(run_on("r7i.16xlarge"));
  ASSERT_FALSE(job.about.empty());
  EXPECT_THAT(job.about[0], StartsWith("org/model with 0.0"));
  EXPECT_THAT(job.about[0], HasSubstr("on 2 nodes of r7i.16xlarge, 1 rank each."));
  EXPECT_THAT(job.about, Contains(StartsWith("Memory of a node: ")));
  EXPECT_THAT(job.about, Contains(HasSubstr("at 500 MB/s")));
  EXPECT_THAT(job.about, Contains(HasSubstr("The nodes cost about 8.47 USD an hour on demand")));
  EXPECT_THAT(job.about, Not(Contains(HasSubstr("Memory of the card"))));
}

TEST(PlannedJob, GraceCoversACheckpointAsFarAsTheNodesAllow) {
  JobRun run = run_on("r7i.16xlarge");
  JobPlan plan;
  plan.forecast.disk.checkpoint_bytes = int64_t{100} << 30;
  run.storage_mb_per_s = 1000;
  EXPECT_EQ(job_grace(run, plan).run_s, 135) << "107.4 s are four fifths of it";
  run.may_be_spot = true;
  EXPECT_EQ(job_grace(run, plan).pod_s, kSpotGraceSeconds);
  EXPECT_TRUE(job_grace(run, plan).is_short);
  run.grace_period_s = 60;
  EXPECT_EQ(job_grace(run, plan).run_s, 60);
  run.instance.name = "";  // the catalogue does not know the nodes, so nothing says that they are spot nodes
  run.grace_period_s = 200;
  EXPECT_EQ(job_grace(run, plan).run_s, 200);
}

}  // namespace
}  // namespace tessera
