#include "cluster/manifests/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

TEST(Manifest, ItemsOfAListAreDocuments) {
  const std::vector<Manifest> all = parse_manifests(
      "apiVersion: v1\nkind: List\nitems:\n  - {kind: Job, metadata: {name: a}}\n  - {kind: Pod, metadata: "
      "{name: b}}\n",
      "x");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].title(), "x:1: Job a");
  EXPECT_EQ(all[1].title(), "x:1: Pod b");
  EXPECT_TRUE(parse_manifests("apiVersion: v1\nkind: List\n", "x").empty());
}

TEST(Manifest, DocumentsHaveTheirLinesAndTypes) {
  const std::vector<Manifest> all = parse_manifests(
      "# a comment\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b}\nspec:\n  n: 7\n  x: "
      "1.5\n  t: \"7\"\n"
      "  b: true\n  z:\n---\n# nothing\n---\nkind: Job\non: 1\nlist: [a, 'yes', {c: d}]\n",
      "job.yaml");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].title(), "job.yaml:2: Pod a");
  EXPECT_EQ(all[0].api(), "v1");
  EXPECT_EQ(all[0].name_space(), "b");
  EXPECT_EQ(*value_at(all[0].body, "spec.n"), Value(7));
  EXPECT_EQ(*value_at(all[0].body, "spec.x"), Value(1.5));
  EXPECT_EQ(*value_at(all[0].body, "spec.t"), Value("7"));
  EXPECT_EQ(*value_at(all[0].body, "spec.b"), Value(true));
  EXPECT_TRUE(value_at(all[0].body, "spec.z")->is_null());
  EXPECT_EQ(text_at(all[1].body, "list.2.c"), "d");
  EXPECT_EQ(text_at(all[1].body, "list.1"), "yes");
  EXPECT_EQ(text_at(parse_manifests("name: inf", "x")[0].body, "name"), "inf") << "a word for kubectl";
  EXPECT_EQ(*value_at(parse_manifests("mode: 0555", "x")[0].body, "mode"), Value(365))
      << "as kubectl reads it";
  EXPECT_EQ(value_at(all[1].body, "list.3"), nullptr);
  EXPECT_EQ(value_at(all[1].body, "kind.x"), nullptr);
  EXPECT_TRUE(list_at(all[1].body, "nowhere").empty());
}

TEST(Manifest, RefusesWhatKubectlReadsDifferently) {
  const auto refused = [](const std::string& text, const std::string& message) {
    expect_error(ExitCode::kBadData, {message}, [&] { parse_manifests(text, "x.yaml"); });
  };
  refused("a: 1\nb: yes\n", "x.yaml:2: found 'yes', which kubectl reads as a boolean: quote it");
  refused("a: 0490\n", "x.yaml:1: found '0490', a number that begins with 0 and is not octal");
  refused("a: 1\nb: 2\na: 3\n", "x.yaml:3: found 'a' a second time");
  refused("a: &x 1\nb: *x\n", "x.yaml:1: found an anchor");
  refused("a: [1\n", "not YAML");
  refused("a:\n\t- b\n", "not YAML");
  refused("? [a]\n: b\n", "found a name that is not text");
  refused("a: \"\xff\"\n", "x.yaml:1: ");
  refused(std::string("a: 1\nb: \0\n", 10), "x.yaml:2: found a zero byte");
  refused(std::string(100, '[') + std::string(100, ']'), "x.yaml:1: found more than 64 levels");
  refused("[" + std::string(500'000, ',') + "]", "x.yaml:1: ");
  std::string names;
  for (int i = 0; i < 3000; ++i) names += "k" + std::to_string(i) + ": 1\n";
  refused(names, "found more than 2000 names");
  std::string values;
  for (int i = 0; i < 210'000; ++i) values += "- 1\n";
  refused(values, "found more than 200000 values");
  refused(std::string(9 << 20, ' '), "larger than 8.00 MiB");
}

}  // namespace
}  // namespace tessera
