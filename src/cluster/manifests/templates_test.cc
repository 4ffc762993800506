#include "cluster/manifests/templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "test_folder.h"

namespace tessera {
namespace {

const Value::Object kQueue = {{"namespace", "training"}, {"version", "1"}};

TEST(DeployTemplates, ShippedFilesHaveDistinctNames) {
  std::set<std::string_view> names;
  for (const ShippedFile& file : shipped_files()) {
    EXPECT_TRUE(names.insert(file.name).second) << file.name;
    EXPECT_FALSE(file.text.empty()) << file.name;
  }
  EXPECT_TRUE(names.contains("queue.yaml.jinja"));
}

TEST(DeployTemplates, AUsersFileReplacesTheShippedOneOfItsName) {
  const TestFolder folder;
  folder.write("queue.yaml.jinja", "name: {{ namespace | tojson }}\n");
  folder.write("notes.txt", "");
  const DeployTemplates templates(folder.path());
  EXPECT_TRUE(templates.is_overridden("queue.yaml.jinja"));
  EXPECT_EQ(templates.render("queue.yaml.jinja", kQueue), "name: \"training\"\n");
  EXPECT_FALSE(DeployTemplates().is_overridden("queue.yaml.jinja"));
}

TEST(DeployTemplates, RefuseAFolderThatIsNotThereAndNamesThatReplaceNothing) {
  const TestFolder folder;
  expect_error(ExitCode::kNoInput, {"--templates: there is no folder", "nowhere"},
               [&] { DeployTemplates(folder / "nowhere"); });
  folder.write("queues.yaml.jinja", "");
  expect_error(ExitCode::kUsage, {"queues.yaml.jinja replaces no template; did you mean queue.yaml.jinja?"},
               [&] { DeployTemplates(folder.path()); });
}

TEST(DeployTemplates, MistakesSayWhoseTheyAre) {
  const TestFolder folder;
  folder.write("queue.yaml.jinja", "a: 1\nb: {{ nothing | tojson }}\n");
  expect_error(ExitCode::kBadData, {"queue.yaml.jinja: line 2", "Undefined"},
               [&] { DeployTemplates(folder.path()).render("queue.yaml.jinja", kQueue); });
  expect_error(ExitCode::kInternal, {"queue.yaml.jinja: line"},
               [] { DeployTemplates().render("queue.yaml.jinja", {}); });
}

TEST(DeployTemplates, DocumentsAreSeparated) {
  EXPECT_EQ(join_documents({"a: 1\n", "b: 2"}), "a: 1\n---\nb: 2\n");
  EXPECT_EQ(join_documents({}), "");
}

}  // namespace
}  // namespace tessera
