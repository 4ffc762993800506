#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/settings/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

TEST_F(ForeignDatasetsTest, ListsOfTextsStayAsTheyAre) {
  EXPECT_THAT(apply("dataset: [a.jsonl, 'b c.jsonl:0.5']\n").data.dataset,
              ElementsAre("a.jsonl", "b c.jsonl:0.5"));
  EXPECT_THAT(apply("dataset: a, b.jsonl\n").data.dataset, ElementsAre("a, b.jsonl"))
      << "only LLaMA-Factory's are names";
}

TEST(DataSource, WeightFollowsTheLastColon) {
  EXPECT_EQ(parse_data_source("a.jsonl:0.7").weight, 0.7);
  EXPECT_THAT(parse_data_source("org/name:config:2").paths, ElementsAre("org/name:config"));
  EXPECT_EQ(parse_data_source("org/name:config").weight, std::nullopt);
  EXPECT_EQ(error_of([] { parse_data_source("a.jsonl:0"); }).code(), ExitCode::kBadConfig);
  const DataSource part = parse_data_source("org/name/train[10%:]:0.5");
  EXPECT_THAT(part.paths, ElementsAre("org/name/train"));
  EXPECT_EQ(part.format.rows, (RowSlice{10, std::nullopt, true}));
  EXPECT_EQ(part.weight, 0.5);
  EXPECT_THAT(parse_data_source("a[0-9].jsonl").paths, ElementsAre("a[0-9].jsonl")) << "a pattern";
  const TestFolder folder;
  const std::string odd = folder.write("x:5", "text").string();
  EXPECT_THAT(parse_data_source(odd).paths, ElementsAre(odd));
}

}  // namespace
}  // namespace tessera
