#include "cluster/storage/offload_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/check_named.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Check file_system(const std::string& type) {
  return check_offload_file_system(Mount{.point = "/scratch", .type = type, .source = "x", .options = {}});
}

TEST(OffloadCheck, WhatIsNoLocalDiskIsSaid) {
  EXPECT_EQ(file_system("ext4").outcome, CheckOutcome::kOk);
  EXPECT_EQ(file_system("tmpfs").outcome, CheckOutcome::kFailed);
  EXPECT_THAT(file_system("tmpfs").message, HasSubstr("memory, which is what offloading should save"));
  EXPECT_EQ(file_system("fuse.s3fs").outcome, CheckOutcome::kFailed);
  EXPECT_EQ(file_system("overlay").outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(file_system("nfs4").message, HasSubstr("a local disk is faster"));
  EXPECT_EQ(check_offload_file_system({}).outcome, CheckOutcome::kSkipped);
}

TEST(OffloadCheck, RatesAndRoomAreToldAsWhatTheyAreGoodFor) {
  TrialReport report;
  report.numbers = {{"free_bytes", 20e9},         {"total_bytes", 1e12}, {"read_bytes_per_s", 2e9},
                    {"written_bytes_per_s", 1e9}, {"direct", 1.0},       {"io_uring", 1.0}};
  report.is_complete = true;
  std::vector<Check> checks = judge_offload("/scratch", {}, report, 10);
  EXPECT_EQ(health_of(checks), Health::kHealthy);
  EXPECT_THAT(check_named(checks, "space").message, HasSubstr("of 2 billion parameters"));
  EXPECT_NEAR(check_named(checks, "update").value.value_or(0), 15, 1e-9);
  EXPECT_EQ(check_named(checks, "transfers").message, "direct I/O, io_uring");
  EXPECT_THAT(check_named(checks, "checkpoints").message, HasSubstr("once more"));
  report.numbers["shares_space"] = 1;
  checks = judge_offload("/scratch", {}, report, 10);
  EXPECT_THAT(check_named(checks, "checkpoints").message, HasSubstr("share the space"));
  report.numbers["direct"] = report.numbers["io_uring"] = 0;
  report.numbers["written_bytes_per_s"] = 0.05e9;
  checks = judge_offload("/scratch", {}, report, 10);
  EXPECT_EQ(check_named(checks, "write").outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(check_named(checks, "transfers").message, HasSubstr("no direct I/O here"));
  EXPECT_THAT(check_named(checks, "transfers").message, HasSubstr("no io_uring"));
}

TEST(OffloadCheck, MeasuresAFolderAndLeavesNothing) {
  const TestFolder folder;
  const std::vector<Check> checks = check_offload(folder.path(), 60);
  EXPECT_EQ(check_named(checks, "responds").outcome, CheckOutcome::kOk);
  EXPECT_GT(check_named(checks, "read").value, 0);
  EXPECT_TRUE(folder.names().empty());
  const std::vector<Check> missing = check_offload(folder / "none", 60);
  EXPECT_THAT(check_named(missing, "responds").message,
              HasSubstr("stage resolve: No such file or directory"));
  EXPECT_EQ(health_of(missing), Health::kUnhealthy);
}

}  // namespace
}  // namespace tessera
