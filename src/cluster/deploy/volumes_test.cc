#include "cluster/deploy/volumes.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

TEST(ExistingVolume, OfLustreIsNamedByItsAddressAndMount) {
  for (const char* text : {"fs-0123.fsx.eu-west-1.amazonaws.com/abcdef",  //
                           "fs-0123.fsx.eu-west-1.amazonaws.com@tcp:/abcdef"}) {
    const RuntimeVolume volume = existing_volume(text, "", "").value();
    EXPECT_EQ(volume.handle, "fs-0123") << text;
    ASSERT_EQ(volume.attributes.size(), 2u);
    EXPECT_EQ(volume.attributes[0].second, "fs-0123.fsx.eu-west-1.amazonaws.com");
    EXPECT_EQ(volume.attributes[1].second, "abcdef");
  }
  for (const char* text : {"x", "fs-1/", "fs-1.a/b/c", "fs-1.a@udp:/b", "fs-1/a.b"})
    expect_error(ExitCode::kUsage, {"--fsx: expected DNS/MOUNT", text},
                 [&] { existing_volume(text, "", ""); });
}

TEST(ExistingVolume, OfEfsIsNamedByItsIdOrAddress) {
  for (const auto& [text, handle] : {std::pair("fs-0123", "fs-0123"),
                                     {"fs-0123::fsap-4567", "fs-0123::fsap-4567"},
                                     {"fs-0123.efs.eu-west-1.amazonaws.com:/", "fs-0123"},
                                     {"fs-0123.efs.eu-west-1.amazonaws.com", "fs-0123"}})
    EXPECT_EQ(existing_volume("", text, "").value().handle, handle);
  for (const char* text : {"0123", "fs-0123.efs.example.com", "fs-0123/x"})
    expect_error(ExitCode::kUsage, {"--efs: expected an ID", text}, [&] { existing_volume("", text, ""); });
}

TEST(ExistingVolume, OfNfsIsNamedByHostAndPath) {
  const RuntimeVolume volume = existing_volume("", "", "10.0.0.5:/export/a").value();
  EXPECT_EQ(volume.server, "10.0.0.5");
  EXPECT_EQ(volume.path, "/export/a");
  for (const char* text : {":/export", "10.0.0.5", "10.0.0.5:export"})
    expect_error(ExitCode::kUsage, {"--nfs: expected HOST:PATH", text},
                 [&] { existing_volume("", "", text); });
}

TEST(ExistingVolume, IsOneOrNone) {
  EXPECT_FALSE(existing_volume("", "", ""));
  expect_error(ExitCode::kUsage, {"give one volume"}, [] { existing_volume("", "fs-1", "a:/b"); });
}

}  // namespace
}  // namespace tessera
