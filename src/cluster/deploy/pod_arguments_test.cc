#include "cluster/deploy/pod_arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

Flag given_flag(const char* name, const char* value_name, std::vector<std::string> values) {
  Flag flag;
  flag.name = name;
  flag.value_name = value_name;
  flag.get = [values] { return values; };
  return flag;
}

TEST(PodArguments, AreDefaultsThenWhatWasGivenThenTheLayout) {
  const Flag model = given_flag("model", "DIR", {"org/model"});
  const Flag rows = given_flag("per_device_train_batch_size", "N", {"7"});  // the layout says it
  const Flag port = given_flag("metrics_port", "N", {"9400"});
  RunLayout layout;
  layout.num_nodes = 2;
  layout.zero_stage = 2;
  layout.micro_batch_rows = 4;
  EXPECT_THAT(
      pod_arguments({&model, &rows, &port}, layout, 8, "job"),
      ElementsAre("--resume_from_checkpoint=auto", "--output_dir=/data/runs/job", "--metrics_host=0.0.0.0",
                  "--model=org/model", "--metrics_port=9400", "--per_device_train_batch_size=4",
                  "--gradient_accumulation_steps=1", "--zero_stage=2"));
}

TEST(PodArguments, NameWhatThePodsHave) {
  for (const char* value : {"org/model", "/data/model"}) {
    const Flag flag = given_flag("model", "DIR", {value});
    EXPECT_NO_THROW(check_pod_paths({&flag})) << value;
  }
  const Flag here = given_flag("model", "DIR", {"../model"});
  expect_error(ExitCode::kUsage, {"--model: the pods do not have '../model'", "such as /data/model"},
               [&] { check_pod_paths({&here}); });
  const Flag logs = given_flag("logging_dir", "DIR", {"logs"});
  expect_error(ExitCode::kUsage, {"--logging_dir: the pods do not have 'logs'"},
               [&] { check_pod_paths({&logs}); });
}

TEST(PodArguments, StateOnADiskNeedsAFolderOnTheVolume) {
  RunSettings spec;
  EXPECT_NO_THROW(check_offload(spec.placement));
  spec.placement.optimizer_device = OffloadDevice::kNvme;
  expect_error(ExitCode::kBadConfig, {"the pods have no disk of their own"},
               [&] { check_offload(spec.placement); });
  spec.placement.offload_dir = "/data/offload";
  EXPECT_NO_THROW(check_offload(spec.placement));
}

TEST(PodArguments, AFabricNeedsItsImageAndInterfaces) {
  RunSettings spec;
  EXPECT_NO_THROW(check_fabric(spec.network, "image", false, 0));
  spec.network.fabric = parse_fabric("efa");
  expect_error(ExitCode::kUsage, {"--fabric efa needs libfabric"},
               [&] { check_fabric(spec.network, "i", false, 1); });
  expect_error(ExitCode::kUsage, {"no EFA interface"}, [&] { check_fabric(spec.network, "i", true, 0); });
  EXPECT_NO_THROW(check_fabric(spec.network, "i", true, 1));
}

}  // namespace
}  // namespace tessera
