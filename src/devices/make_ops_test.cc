#include "devices/make_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tessera {
namespace {

TEST(MakeOps, SaysWhatHindersADevice) {
  ThreadPool pool(1);
  EXPECT_EQ(&make_ops(DeviceKind::kCpu, pool)->device(), &host_device());
  try {
    EXPECT_NE(&make_ops(DeviceKind::kCuda, pool)->device(), &host_device());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), testing::StartsWith("device cuda: "));
  }
}

}  // namespace
}  // namespace tessera
