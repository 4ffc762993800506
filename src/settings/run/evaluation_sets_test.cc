// Evaluation sets with names, and the metrics that they have.
#include "settings/run/evaluation_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/settings/arguments_test_support.h"
#include "support/settings/foreign_datasets_fixture.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(EvaluationSets, AreNamedByAllEntriesOrByNone) {
  const std::vector<EvaluationSet> sets =
      evaluation_sets({"news=a.jsonl", "code v1.0=org/name/test[:10]", "news=b.parquet"});
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "news");
  EXPECT_EQ(sets[0].prefix(), "eval_news");
  EXPECT_THAT(sets[0].sources, ElementsAre("a.jsonl", "b.parquet")) << "a name may have several sources";
  EXPECT_EQ(sets[1].name, "code v1.0");
  EXPECT_THAT(sets[1].sources, ElementsAre("org/name/test[:10]"));
  const std::vector<EvaluationSet> one = evaluation_sets({"a.jsonl", "b.jsonl:0.5"});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].prefix(), "eval");
  EXPECT_THAT(one[0].sources, ElementsAre("a.jsonl", "b.jsonl:0.5"));
  EXPECT_TRUE(evaluation_sets({}).empty());
  for (const std::vector<std::string>& mixed :
       {std::vector<std::string>{"news=a.jsonl", "b.jsonl"}, {"b.jsonl", "news=a.jsonl"}}) {
    const Error error = error_of([&] { evaluation_sets(mixed); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), HasSubstr("give a name to all evaluation sets, as NAME=FILE, or to none"));
  }
  EXPECT_THAT(error_of([] { evaluation_sets({"news=a.jsonl:0.5"}); }).what(),
              HasSubstr("eval_dataset news=a.jsonl:0.5: a weight has no meaning here"));
  EXPECT_THAT(error_of([] { evaluation_sets({"news="}); }).what(), HasSubstr("expected NAME=FILE"));
}

// Folders of partitioned tables are called lang=en.
TEST(EvaluationSets, FilesThatExistHaveNoName) {
  const TestFolder folder;
  const std::string path = (folder / "lang=en.jsonl").string();
  EXPECT_EQ(source_of_entry(path), path) << "there is a / before the =";
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  folder.write("lang=en.jsonl", "{}");
  for (const char* file : {"lang=en.jsonl", "lang=*.jsonl", "lang=en.jsonl[:1]", "lang=en.jsonl:0.5"})
    EXPECT_EQ(source_of_entry(file), file);
  EXPECT_EQ(source_of_entry("lang=de.jsonl"), "de.jsonl");
  std::filesystem::current_path(before);
}

using EvaluationSetsTest = ArgumentsTest;

TEST_F(EvaluationSetsTest, ObjectsOfFilesAreNamesToo) {
  give("eval_dataset", R"({"news": "a.jsonl", "code": ["b.jsonl", "c.jsonl"]})");
  EXPECT_THAT(spec_.data.eval_dataset, ElementsAre("news=a.jsonl", "code=b.jsonl", "code=c.jsonl"));
  const auto problem = [](const std::string& object) {
    const Error error = error_of([&] { entries_of_sets(object, "eval_dataset"); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return std::string(error.what());
  };
  EXPECT_THAT(problem(R"({"a/b": "a.jsonl"})"), HasSubstr("in the name of an evaluation set, found 'a/b'"));
  EXPECT_THAT(problem(R"({"a": {"path": "a.jsonl"}})"), HasSubstr("a: expected a file or a list of files"));
  EXPECT_THAT(problem(R"({"a": []})"), HasSubstr("a: expected a file or a list of files"));
  EXPECT_THAT(problem(R"({"a": null})"), HasSubstr("a: expected a file or a list of files, found null"));
  EXPECT_THAT(problem(R"({"a": "b.jsonl", "a": "c.jsonl"})"), HasSubstr("'a' is named twice"));
  EXPECT_THAT(problem("{}"), HasSubstr("expected an object of files by name"));
  EXPECT_THAT(problem("{a: b}"), HasSubstr("expected an object of files by name"));
}

// Transformers 5.24 raises a KeyError at the first evaluation.
TEST_F(EvaluationSetsTest, MetricsAreThoseOfTheSets) {
  give("eval_strategy", "epoch");
  give("save_strategy", "epoch");
  give("load_best_model_at_end", "true");
  give("eval_dataset", R"({"news": "a.jsonl", "code": "b.jsonl"})");
  EXPECT_THAT(
      contradiction(),
      HasSubstr("metric_for_best_model eval_loss (the default): no evaluation of this run has it: name "
                "one of eval_news_loss, eval_news_loss_per_token"));
  give("metric_for_best_model", "eval_loss");
  EXPECT_THAT(contradiction(),
              HasSubstr("metric_for_best_model eval_loss: no evaluation of this run has it"));
  give("metric_for_best_model", "wiki_loss");
  EXPECT_THAT(contradiction(), HasSubstr("metric_for_best_model eval_wiki_loss: no evaluation"));
  give("metric_for_best_model", "code_loss");
  resolve();
  EXPECT_EQ(spec_.evaluation.metric, "eval_code_loss");
  EXPECT_EQ(spec_.evaluation.greater_is_better, false);
  EXPECT_THAT(refusal("metric_for_best_model", "news_accuracy"), HasSubstr("expected one of loss"));
}

TEST_F(EvaluationSetsTest, TheMetricOfASetNeedsTheSet) {
  give("eval_strategy", "epoch");
  give("eval_dataset", "a.jsonl");
  give("metric_for_best_model", "eval_news_perplexity");
  EXPECT_THAT(contradiction(), HasSubstr("name one of eval_loss, eval_loss_per_token, eval_perplexity"));
}

class EvaluationSetFiles : public ForeignDatasetsTest {};

TEST_F(EvaluationSetFiles, MappingsKeepTheirOrder) {
  EXPECT_THAT(
      apply("model: m\neval_dataset:\n  news: a.jsonl\n  code: [b.jsonl, c.jsonl]\n").data.eval_dataset,
      ElementsAre("news=a.jsonl", "code=b.jsonl", "code=c.jsonl"));
  EXPECT_THAT(apply("model: m\neval_dataset: [z=a.jsonl, b=b.jsonl]\n").data.eval_dataset,
              ElementsAre("z=a.jsonl", "b=b.jsonl"));
  EXPECT_THAT(refusal("model: m\neval_dataset:\n  news: a.jsonl\n  news: b.jsonl\n"),
              HasSubstr("run.yaml:4: 'news' is set twice"));
  EXPECT_THAT(refusal("model: m\neval_dataset:\n  news: 5\n"),
              HasSubstr("run.yaml:2: eval_dataset: news: expected a file or a list of files, found 5"));
}

TEST_F(EvaluationSetFiles, LlamaFactoryEvaluatesOnEachDataset) {
  folder_.write("dataset_info.json",
                R"({"identity": {"file_name": "i.json"}, "wiki": {"file_name": "w.json"}})");
  const std::string start =
      "dataset_dir: " + folder_.path().string() + "\nmodel: m\ndataset: wiki\neval_dataset: wiki, identity\n";
  const std::string folder = folder_.path().string() + "/";
  EXPECT_THAT(apply(start + "eval_on_each_dataset: true\n").data.eval_dataset,
              ElementsAre("wiki=" + folder + "w.json", "identity=" + folder + "i.json"));
  EXPECT_THAT(apply(start + "eval_on_each_dataset: false\n").data.eval_dataset,
              ElementsAre(folder + "w.json", folder + "i.json"));
  EXPECT_THAT(refusal("model: m\neval_dataset: a.jsonl\neval_on_each_dataset: true\n"),
              HasSubstr("name the sets in eval_dataset"));
}

}  // namespace
}  // namespace tessera
