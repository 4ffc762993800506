// Tests how packing, and the split of rows for evaluation, follow from the settings.
#include "settings/derived.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class RowArgumentsTest : public ArgumentsTest {
 protected:
  RowArgumentsTest() {
    give("validation_split_percentage", "10");
    give("eval_strategy", "epoch");
  }
};

// Rows that are in the order of their lengths would hold out the longest.
TEST_F(RowArgumentsTest, DocumentsAreSplitBeforeThoseThatPackByLength) {
  EXPECT_FALSE(splits_documents(spec_.data));
  give("packing", "true");
  resolve();
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kIsolated) << "auto";
  EXPECT_FALSE(splits_documents(spec_.data)) << "as in checkpoints that are there";
  for (const char* strategy : {"bfd", "bfd_split", "greedy_knapsack"}) {
    give("packing_strategy", strategy);
    EXPECT_TRUE(splits_documents(spec_.data)) << strategy;
  }
  give("packing_strategy", "wrapped");
  EXPECT_FALSE(splits_documents(spec_.data));
}

TEST_F(RowArgumentsTest, RowsForEvaluationMayBePackedInAnotherWay) {
  give("packing", "true");
  give("eval_packing", "false");
  resolve();
  EXPECT_TRUE(splits_documents(spec_.data));
  EXPECT_EQ(spec_.data.eval_packing_mode(), Packing::kNone);
  give("packing", "false");
  give("eval_packing", "true");
  resolve();
  EXPECT_TRUE(splits_documents(spec_.data));
  EXPECT_EQ(spec_.data.eval_packing_mode(), Packing::kIsolated);
}

TEST_F(RowArgumentsTest, DocumentsSeeEachOtherInOrderOnly) {
  give("packing_cross_document_attention", "true");
  EXPECT_THAT(contradiction(), HasSubstr("packing_cross_document_attention needs packing true"));
  give("packing", "true");
  resolve();
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kJoined);
  give("packing_strategy", "bfd");
  EXPECT_THAT(contradiction(), HasSubstr("contradicts packing_strategy bfd"));
}

}  // namespace
}  // namespace tessera
