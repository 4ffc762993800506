#include "cluster/jobs/kubectl.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(Kubectl, ThatHangsIsEnded) {
  const TestFolder folder;
  const std::string program = folder.write("kubectl", "#!/bin/sh\nsleep 60\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const Stopwatch time;
  const Kubectl kubectl(
      [&](const std::string& name) { return name == "KUBECTL" ? std::optional(program) : std::nullopt; },
      std::chrono::seconds(1));
  expect_error(ExitCode::kIoError, {"kubectl has not answered within 1 s"}, [&] {
    kubectl.run({{"get", "pods"}, {"get", "events"}});
  });
  EXPECT_LT(time.seconds(), 20);
}

}  // namespace
}  // namespace tessera
