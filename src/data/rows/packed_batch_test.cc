#include "tensor/packed_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "data/rows/batch_plan.h"
#include "support/dataset_test_util.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class PackedBatchTest : public DatasetTest {
 protected:
  PackedBatch batch_of(const Dataset& dataset, const std::vector<int64_t>& rows) {
    PackedBatch batch;
    make_packed_batch(dataset, rows, 0, &batch);
    return batch;
  }
};

TEST_F(PackedBatchTest, TargetsAreTheNextLabelsOfTheSameSequence) {
  write_integers(folder_ / "a.safetensors",
                 {{"input_ids", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"labels", {2, 3}, {7, 8, -100, -100, 9, 10}}});
  const PackedBatch batch = batch_of(open(options_for({"a.safetensors"})), {1, 0});
  EXPECT_THAT(batch.input_ids, ElementsAre(4, 5, 6, 1, 2, 3));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(batch.targets, ElementsAre(9, 10, -100, 8, -100, -100));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 3, 6));
  EXPECT_EQ(batch.num_targets, 3);
  EXPECT_EQ(batch.num_tokens(), 6);
  EXPECT_EQ(batch.num_sequences(), 2);
}

TEST_F(PackedBatchTest, WithoutLabelsTheIdsAreTheLabels) {
  folder_.write("a.txt", "abc\nde\nf\n");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  const PackedBatch batch = batch_of(open(options), {0, 1, 2});
  EXPECT_THAT(batch.input_ids, ElementsAre('a', 'b', 'c', kTestEos, 'd', 'e', kTestEos, 'f', kTestEos));
  EXPECT_THAT(batch.targets, ElementsAre('b', 'c', kTestEos, -100, 'e', kTestEos, -100, kTestEos, -100));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 4, 7, 9));
  EXPECT_EQ(batch.num_targets, 6);
}

TEST_F(PackedBatchTest, IsolatedDocumentsRestartAndJoinedOnesGoOn) {
  folder_.write("a.txt", "ab\nc\n");
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.packing = Packing::kIsolated;
  const PackedBatch isolated = batch_of(open(options), {0});
  EXPECT_THAT(isolated.input_ids, ElementsAre('a', 'b', kTestEos, 'c', kTestEos));
  EXPECT_THAT(isolated.positions, ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(isolated.targets, ElementsAre('b', kTestEos, -100, kTestEos, -100));
  EXPECT_THAT(isolated.cu_seqlens, ElementsAre(0, 3, 5));
  EXPECT_EQ(isolated.num_targets, 3);
  options.packing = Packing::kJoined;
  const PackedBatch joined = batch_of(open(options), {0});
  EXPECT_EQ(joined.input_ids, isolated.input_ids);
  EXPECT_THAT(joined.positions, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(joined.targets, ElementsAre('b', kTestEos, 'c', kTestEos, -100));
  EXPECT_THAT(joined.cu_seqlens, ElementsAre(0, 5));
}

TEST_F(PackedBatchTest, ReusesItsMemoryAndCountsAsTheDatasetDoes) {
  std::string file;
  for (int i = 0; i < 300; ++i) file += std::string(static_cast<size_t>(1 + i % 13), 'a') + "\n";
  folder_.write("a.txt", file);
  DatasetOptions options = options_for({"a.txt"});
  options.text_per_line = true;
  options.packing = Packing::kIsolated;
  options.max_length = 20;
  const Dataset dataset = open(options);
  PackedBatch batch;
  int64_t num_tokens = 0;
  int64_t num_targets = 0;
  for (int64_t row = 0; row < dataset.num_rows(); ++row) {
    make_packed_batch(dataset, std::array{row}, 0, &batch);
    EXPECT_EQ(batch.num_tokens(), dataset.row_length(row));
    EXPECT_EQ(batch.num_targets, dataset.row_num_targets(row)) << "row " << row;
    num_tokens += batch.num_tokens();
    num_targets += batch.num_targets;
  }
  EXPECT_EQ(num_tokens, dataset.num_tokens());
  EXPECT_EQ(num_targets, dataset.num_targets());
  make_packed_batch(dataset, {}, 0, &batch);
  EXPECT_EQ(batch.num_tokens(), 0);
  EXPECT_EQ(batch.num_sequences(), 0);
}

TEST_F(PackedBatchTest, PreTokenizedRowsAreFlattenedInOrderForEveryIntegerType) {
  // Stores the 4 rows of 3 as [2, 2, 3], in 64-bit and in 16-bit integers.
  std::vector<int64_t> values;
  std::string bytes16;
  for (int64_t i = 0; i < 12; ++i) {
    values.push_back(i * 20);
    bytes16 += static_cast<char>(i * 20);
    bytes16 += '\0';
  }
  write_integers(folder_ / "a.safetensors", {{"input_ids", {2, 2, 3}, values}});
  folder_.write(
      "b.safetensors",
      safetensors_bytes(R"({"input_ids":{"dtype":"U16","shape":[2,2,3],"data_offsets":[0,24]}})", bytes16));
  for (const char* name : {"a.safetensors", "b.safetensors"}) {
    const Dataset dataset = Dataset::open(options_for({name}), nullptr, kTestVocabSize, pool_);
    ASSERT_EQ(dataset.num_rows(), 4) << name;
    Dataset::Row row;
    dataset.read_row(2, &row);
    EXPECT_THAT(row.input_ids, ElementsAre(120, 140, 160)) << name;
    EXPECT_TRUE(row.labels.empty());
  }
}

TEST_F(PackedBatchTest, PreTokenizedFilesJoinAndLongRowsAreCut) {
  write_integers(folder_ / "a.safetensors", {{"input_ids", {2, 2}, {1, 2, 3, 4}}});
  write_integers(folder_ / "b.safetensors",
                 {{"input_ids", {2, 5}, {10, 11, 12, 13, 14, 20, 21, 22, 23, 24}},
                  {"labels", {2, 5}, {-100, 11, 12, 13, 14, -100, -100, 22, 23, 24}},
                  {"attention_mask", {2, 5}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}});
  DatasetOptions options = options_for({"a.safetensors", "b.safetensors"});
  options.max_length = 3;
  options.allow_truncation = true;
  const Dataset dataset = open(options);
  ASSERT_EQ(dataset.num_rows(), 4);
  EXPECT_EQ(dataset.report().num_cut_documents, 2);
  EXPECT_EQ(dataset.report().num_cut_tokens, 4);
  ASSERT_EQ(dataset.report().warnings.size(), 1u);
  EXPECT_THAT(dataset.report().warnings[0], ::testing::HasSubstr("cut 2 of 4 rows to max_length 3"));
  const PackedBatch batch = batch_of(dataset, {0, 1, 2, 3});
  EXPECT_THAT(batch.input_ids, ElementsAre(1, 2, 3, 4, 10, 11, 12, 20, 21, 22));
  EXPECT_THAT(batch.targets, ElementsAre(2, -100, 4, -100, 11, 12, -100, -100, 22, -100));
  EXPECT_EQ(dataset.num_targets(), batch.num_targets);
}

TEST_F(PackedBatchTest, ReferenceBatchesComeOutStepByStep) {
  for (const fs::path& folder : reference_cases()) {
    const fs::path path = folder / "batches.safetensors";
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::vector<int64_t> shape = file.find("input_ids")->shape;  // [steps, accumulation, batch, length]
    ASSERT_EQ(shape.size(), 4u);
    std::vector<int64_t> ids(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    std::vector<int64_t> labels(ids.size());
    const Shape flat{static_cast<int64_t>(ids.size())};
    file.read(*file.find("input_ids"), 0, TensorView(ids.data(), DType::kI64, flat));
    file.read(*file.find("labels"), 0, TensorView(labels.data(), DType::kI64, flat));

    DatasetOptions options;
    options.sources = {path.string()};
    options.cache_folder = folder_ / "cache";
    const Dataset dataset = Dataset::open(options, nullptr, 1 << 20, pool_);
    ASSERT_EQ(dataset.num_rows(), shape[0] * shape[1] * shape[2]);
    BatchPlanOptions plan_options;
    plan_options.num_rows = dataset.num_rows();
    plan_options.micro_batch_size = shape[2];
    plan_options.gradient_accumulation_steps = shape[1];
    plan_options.shuffle = false;
    const BatchPlan plan(plan_options);
    ASSERT_EQ(plan.steps_per_epoch(), shape[0]);
    size_t at = 0;
    for (int64_t step = 0; step < shape[0]; ++step) {
      for (const std::vector<int64_t>& rows : plan.rows_of_step(step)) {
        const PackedBatch batch = batch_of(dataset, rows);
        ASSERT_EQ(batch.num_sequences(), shape[2]);
        for (int64_t t = 0; t < batch.num_tokens(); ++t, ++at) {
          const bool is_last = (t + 1) % shape[3] == 0;
          ASSERT_EQ(batch.input_ids[static_cast<size_t>(t)], ids[at])
              << folder << " step " << step << " token " << t;
          ASSERT_EQ(batch.targets[static_cast<size_t>(t)], is_last ? kIgnoredLabel : labels[at + 1])
              << folder << " step " << step << " token " << t;
        }
      }
    }
    EXPECT_EQ(at, ids.size());
  }
}

}  // namespace
}  // namespace tessera
