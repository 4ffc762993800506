#include "cluster/manifests/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

TEST(DeployNames, AcceptLabelsThatLeaveRoomForTheSuffix) {
  check_label("name", "a");
  check_label("name", "llama-3-8b");
  check_label("name", std::string(63, 'x'));
  check_label("name", std::string(54, 'x'), "-node-0-3");
  check_object_name("storage_class", "gp3.csi.aws");
  // A label of such a name may have more than 63 characters.
  check_object_name("claim", std::string(64, 'a') + "." + std::string(188, 'b'));
}

TEST(DeployNames, RefuseWhatKubernetesRefuses) {
  for (const char* name :
       {"", "A", "a_b", "-a", "a-", "a.b", "a b", "\xc3\xa4", "a\nkind: Secret", "a\"", "a: b"}) {
    expect_error(ExitCode::kUsage, {"--name: expected a name of lower-case letters"},
                 [&] { check_label("name", name); });
  }
  for (const char* name : {"", "a..b", ".a", "a.", "A.b", "a/b"}) {
    expect_error(ExitCode::kUsage, {"--storage_class: expected a name"},
                 [&] { check_object_name("storage_class", name); });
  }
  expect_error(ExitCode::kUsage, {"at most 253"}, [] { check_object_name("x", std::string(254, 'a')); });
}

TEST(DeployNames, SayByHowMuchANameIsTooLong) {
  expect_error(ExitCode::kUsage, {"has 64 characters: a name in Kubernetes has at most 63, shorten it to 63"},
               [] { check_label("name", std::string(64, 'a')); });
  expect_error(ExitCode::kUsage,
               {"has 55 characters and its pods append 9 more ('-node-0-3'): a name in Kubernetes has at "
                "most 63, shorten it to 54"},
               [] { check_label("name", std::string(55, 'a'), "-node-0-3"); });
}

TEST(DeployNames, TextIsAnythingThatYamlCarriesUnchanged) {
  for (const char* text :
       {"", "a: b # c", "{{ x }}", "'\"\\", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "- a", "\xc2\xa0"}) {
    check_text("dataset", text);
  }
  for (const char* text :
       {"a\nb", "a\tb", "\x7f", "\xc2\x85", "\xe2\x80\xa8", "\xef\xbb\xbfx", "\xff", "\xc2"}) {
    expect_error(ExitCode::kUsage, {"--dataset: expected text without control characters"},
                 [&] { check_text("dataset", text); });
  }
  expect_error(ExitCode::kUsage, {"expected at most 4096 bytes, found 5000"},
               [] { check_text("dataset", std::string(5000, 'a')); });
}

TEST(DeployNames, LabelOfAnyTextIsALabelOrEmpty) {
  EXPECT_EQ(label_of("meta-llama/Llama-3.1-8B"), "llama-3-1-8b");
  EXPECT_EQ(label_of("/data/models/My Model__x/"), "");
  EXPECT_EQ(label_of("__a__b__"), "a-b");
  EXPECT_EQ(label_of("abc-def", 4), "abc");
  EXPECT_EQ(label_of("\xc3\xa4\xc3\xb6"), "");
}

}  // namespace
}  // namespace tessera
