#include "cluster/storage/storage_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake_machine.h"
#include "support/check_named.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Mount mount_with(const std::string& type, const std::string& source, std::vector<std::string> options) {
  return {.point = "/data", .type = type, .source = source, .options = std::move(options)};
}

TrialReport good_report() {
  TrialReport report;
  report.numbers = {
      {"free_bytes", 5e12},      {"total_bytes", 6e12},     {"total_inodes", 1e6}, {"free_inodes", 1e5},
      {"write_mb_per_s", 900.0}, {"read_mb_per_s", 1200.0}, {"fsync_ms", 1.0},     {"direct", 1.0}};
  report.is_complete = true;
  return report;
}

std::vector<Check> judge(const TrialReport& report, const std::optional<Mount>& mount = {}) {
  return judge_trial("/data", mount, report, 10);
}

TEST(Mounts, MountinfoIsRead) {
  const std::vector<Mount> mounts = parse_mounts(
      "22 27 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a\n"
      "23 22 0:22 / /data\\040dir rw,noatime - nfs4 10.0.0.1:/x rw,vers=4.1,hard\n"
      "nonsense\n1 2 3 - ext4\n - a b\n"
      "24 22 0:23 / /data rw - ext4 /dev/vda rw\n"
      "25 22 0:24 / /data rw - lustre 10.0.0.2@tcp:/fsx rw,flock\n");
  ASSERT_EQ(mounts.size(), 4u);
  EXPECT_EQ(mounts[1].point, "/data dir");
  EXPECT_EQ(mounts[1].option("vers"), "4.1");
  EXPECT_EQ(mounts[1].option("ver"), "");
  EXPECT_TRUE(mounts[1].has_option("hard"));
  EXPECT_EQ(mount_of(mounts, "/data/runs")->type, "lustre") << "the last mount at a place hides the others";
  EXPECT_EQ(mount_of(mounts, "/data dir/x")->type, "nfs4");
  EXPECT_EQ(mount_of(mounts, "/database")->type, "overlay");
  EXPECT_EQ(mount_of({}, "/x"), std::nullopt);
}

TEST(Mounts, KindsAreToldApart) {
  for (const auto& [type, source, kind] : std::vector<std::tuple<std::string, std::string, FileSystemKind>>{
           {"ext4", "/dev/vda", FileSystemKind::kLocal},
           {"xfs", "/dev/nvme0n1", FileSystemKind::kLocal},
           {"tmpfs", "tmpfs", FileSystemKind::kMemory},
           {"overlay", "overlay", FileSystemKind::kOverlay},
           {"nfs", "server:/x", FileSystemKind::kNfs},
           {"nfs4", "fs-1.efs.eu-west-1.amazonaws.com:/", FileSystemKind::kNfs},
           {"lustre", "10.0.0.2@tcp:/fsx", FileSystemKind::kLustre},
           {"fuse", "mountpoint-s3", FileSystemKind::kObjectStore},
           {"fuse.s3fs", "s3fs", FileSystemKind::kObjectStore},
           {"fuse.gcsfuse", "bucket", FileSystemKind::kObjectStore},
           {"fuse.sshfs", "host:", FileSystemKind::kOther},
           {"9p", "share", FileSystemKind::kOther}}) {
    EXPECT_EQ(mount_with(type, source, {}).kind(), kind) << type;
  }
  EXPECT_TRUE(mount_with("nfs4", "fs-1.efs.eu-west-1.amazonaws.com:/", {}).is_efs());
  EXPECT_FALSE(mount_with("nfs4", "server:/x", {}).is_efs());
}

TEST(FileSystem, WhatDoesNotLastIsSaid) {
  EXPECT_EQ(describe_file_system({}).outcome, CheckOutcome::kSkipped);
  EXPECT_EQ(describe_file_system(mount_with("ext4", "/dev/vda", {})).outcome, CheckOutcome::kOk);
  EXPECT_THAT(describe_file_system(mount_with("tmpfs", "tmpfs", {})).message,
              HasSubstr("not for checkpoints"));
  EXPECT_THAT(describe_file_system(mount_with("overlay", "overlay", {})).message,
              HasSubstr("not for checkpoints"));
  EXPECT_THAT(describe_file_system(mount_with("fuse", "mountpoint-s3", {})).message,
              HasSubstr("an object store"));
}

TEST(MountOptions, SoftNfsFailsAndTheRestIsAdvice) {
  const auto nfs = [](std::vector<std::string> options) {
    return check_mount_options(mount_with("nfs4", "server:/x", std::move(options)));
  };
  EXPECT_EQ(nfs({"rw", "hard", "vers=4.1", "rsize=1048576", "wsize=1048576"}).outcome, CheckOutcome::kOk);
  EXPECT_EQ(nfs({"rw", "soft", "vers=4.1"}).outcome, CheckOutcome::kFailed);
  EXPECT_EQ(nfs({"ro", "hard"}).outcome, CheckOutcome::kFailed);
  const Check old = nfs({"rw", "hard", "vers=3", "nolock", "rsize=65536"});
  EXPECT_EQ(old.outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(old.message, AllOf(HasSubstr("nfsvers=4.1"), HasSubstr("do not see each other's"),
                                 HasSubstr("rsize=1048576")));
}

TEST(MountOptions, LustreNeedsFlock) {
  const auto lustre = [](std::vector<std::string> options) {
    return check_mount_options(mount_with("lustre", "10.0.0.2@tcp:/fsx", std::move(options)));
  };
  EXPECT_EQ(lustre({"rw", "flock"}).outcome, CheckOutcome::kOk);
  EXPECT_THAT(
      lustre({"rw", "localflock"}).message,
      AllOf(HasSubstr("localflock"), HasSubstr("do not see each other's"), Not(HasSubstr("output_dir"))));
  EXPECT_EQ(lustre({"rw"}).outcome, CheckOutcome::kAdvice);
}

TEST(LustreVersions, RefusedConnectionIsFoundInTheKernelLog) {
  FakeMachine machine;
  EXPECT_EQ(check_lustre_versions(kernel_messages(machine.root()), 10).outcome, CheckOutcome::kSkipped);
  machine.write("dev/kmsg", "6,1,5000000,-;Lustre: Lustre: Build Version: 2.15.6\n");
  EXPECT_EQ(check_lustre_versions(kernel_messages(machine.root()), 10).outcome, CheckOutcome::kOk);
  machine.write(
      "dev/kmsg",
      "6,1,5000000,-;Lustre: Lustre: Build Version: 2.15.6\n"
      "3,2,6000000,-;LustreError: 16a-c: Server MGS version (2.10.5.0) refused connection from this client "
      "with an incompatible version (2.15.6).  Client must be recompiled\n"
      "3,3,7000000,-;LustreError: something else\n");
  const Check check = check_lustre_versions(kernel_messages(machine.root()), 10);
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message,
              AllOf(HasSubstr("Server MGS version (2.10.5.0) refused"), HasSubstr("2.15 (FSx")));
  EXPECT_EQ(check_lustre_versions(kernel_messages(machine.root()), 200'000).outcome, CheckOutcome::kOk)
      << "days ago";
}

std::string hex_of(std::initializer_list<std::pair<uint64_t, int>> numbers) {
  std::string text;
  for (const auto& [value, size] : numbers) {
    for (int i = 0; i < size; ++i) text += fmt::format("{:02x}", (value >> (8 * i)) & 0xFF);
  }
  return text;
}

// lov_user_md_v1: magic, pattern, object id, stripe size, stripe count, offset.
std::string plain(uint64_t count) {
  return hex_of({{0x0BD10BD0, 4}, {1, 4}, {0, 8}, {0, 8}, {1 << 20, 4}, {count, 2}, {0, 2}});
}

// lov_comp_md_v1 with two entries, whose layouts follow.
std::string composite(uint64_t first, uint64_t second) {
  std::string text = hex_of({{0x0BD60BD0, 4}, {192, 4}, {1, 4}, {0, 2}, {2, 2}, {0, 8}, {0, 8}});
  for (const uint64_t offset : {128, 160}) {
    text += hex_of({{1, 4}, {0, 4}, {0, 8}, {1 << 20, 8}, {offset, 4}, {32, 4}, {0, 8}, {0, 8}});
  }
  return text + plain(first) + plain(second);
}

TEST(LustreLayoutBytes, PlainAndProgressiveLayoutsAreRead) {
  EXPECT_EQ(parse_lustre_layout(plain(4))->stripe_count, 4);
  EXPECT_EQ(parse_lustre_layout(plain(4))->stripe_bytes, 1 << 20);
  EXPECT_EQ(parse_lustre_layout(plain(0xFFFF))->stripe_count, -1);
  EXPECT_EQ(parse_lustre_layout(composite(1, 8))->stripe_count, 8);
  EXPECT_EQ(parse_lustre_layout(composite(0xFFFF, 8))->stripe_count, -1);
}

TEST(LustreLayoutBytes, DamagedBytesAreNoLayout) {
  for (const std::string& whole : {plain(4), composite(1, 8)}) {
    for (size_t size = 0; size < whole.size(); size += 2) parse_lustre_layout(whole.substr(0, size));
    EXPECT_FALSE(parse_lustre_layout(whole.substr(0, 32)));
  }
  EXPECT_FALSE(parse_lustre_layout(""));
  EXPECT_FALSE(parse_lustre_layout("zz"));
  EXPECT_FALSE(parse_lustre_layout("00112233445566778899"));
}

TEST(LustreLayoutCheck, OneStripeIsAdvice) {
  const Mount lustre = mount_with("lustre", "10.0.0.2@tcp:/fsx", {"rw", "flock"});
  TrialReport report = good_report();
  EXPECT_EQ(check_lustre_layout(lustre, report).outcome, CheckOutcome::kSkipped);
  report.texts["lov"] = plain(1);
  EXPECT_THAT(check_lustre_layout(lustre, report).message, HasSubstr("lfs setstripe -c -1"));
  EXPECT_EQ(check_lustre_layout(lustre, report).outcome, CheckOutcome::kAdvice);
  report.texts["lov"] = plain(4);
  EXPECT_EQ(check_lustre_layout(lustre, report).outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_lustre_layout(mount_with("ext4", "/dev/vda", {}), report).outcome, CheckOutcome::kSkipped);
}

TEST(StorageTrial, GoodOneIsHealthy) { EXPECT_EQ(health_of(judge(good_report())), Health::kHealthy); }

TEST(StorageTrial, HungServerNamesStageAndPorts) {
  TrialReport report;
  report.timed_out = true;
  report.last_stage = "resolve";
  Check check = check_named(judge(report, mount_with("lustre", "10.0.0.2@tcp:/fsx", {})), "responds");
  EXPECT_EQ(check.outcome, CheckOutcome::kFailed);
  EXPECT_THAT(check.message, AllOf(HasSubstr("no answer for 10.0 s in stage resolve"),
                                   HasSubstr("10.0.0.2@tcp:/fsx"), HasSubstr("TCP 988 and 1018-1023")));
  check = check_named(judge(report, mount_with("nfs4", "server:/x", {})), "responds");
  EXPECT_THAT(check.message, HasSubstr("TCP 2049"));
  check = check_named(judge(report), "responds");
  EXPECT_THAT(check.message, HasSubstr("hangs"));
}

TEST(StorageTrial, EveryFindingHasItsOutcome) {
  TrialReport report = good_report();
  report.texts["error"] = "write: Input/output error";
  EXPECT_EQ(check_named(judge(report), "responds").outcome, CheckOutcome::kFailed);
  report = good_report();
  report.is_complete = false;
  EXPECT_EQ(check_named(judge(report), "responds").outcome, CheckOutcome::kUnknown);
  report = good_report();
  report.numbers["write_mb_per_s"] = 50;
  EXPECT_EQ(check_named(judge(report), "write").outcome, CheckOutcome::kAdvice);
  EXPECT_THAT(check_named(judge(report), "write").message, HasSubstr("100 GB take 33:20"));
  report = good_report();
  report.texts["wrong"] = "bytes 0 to 4 are not what was written";
  EXPECT_EQ(check_named(judge(report), "read").outcome, CheckOutcome::kFailed);
  report = good_report();
  report.numbers["fsync_ms"] = 1500;
  EXPECT_EQ(check_named(judge(report), "fsync").outcome, CheckOutcome::kFailed);
  report = good_report();
  report.texts["rename_error"] = "Function not implemented";
  EXPECT_EQ(check_named(judge(report), "rename").outcome, CheckOutcome::kFailed);
  report = good_report();
  report.texts["lock_error"] = "flock: No locks available";
  EXPECT_EQ(check_named(judge(report), "locks").outcome, CheckOutcome::kAdvice);
  report = good_report();
  report.numbers["free_bytes"] = 1e9;
  EXPECT_EQ(check_named(judge(report), "space").outcome, CheckOutcome::kFailed);
  report = good_report();
  report.numbers["free_inodes"] = 3;
  EXPECT_EQ(check_named(judge(report), "space").outcome, CheckOutcome::kFailed);
}

TEST(StorageCheck, FolderOfThisMachineIsExamined) {
  const TestFolder folder;
  const std::vector<Check> checks = check_storage(folder.path(), 5);
  EXPECT_EQ(check_named(checks, "responds").outcome, CheckOutcome::kOk);
  EXPECT_EQ(check_named(checks, "rename").outcome, CheckOutcome::kOk);
  EXPECT_THAT(check_named(checks, "file_system").message, HasSubstr(" at /"));
}

TEST(StorageCheck, MountsComeFromTheGivenRoot) {
  const TestFolder folder;
  FakeMachine machine;
  machine.write("proc/self/mountinfo", "23 22 0:22 / / rw - nfs4 server:/x rw,soft\n");
  EXPECT_EQ(check_named(check_storage(folder.path(), 5, machine.root()), "options").outcome,
            CheckOutcome::kFailed);
}

}  // namespace
}  // namespace tessera
