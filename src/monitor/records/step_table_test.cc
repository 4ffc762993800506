#include "monitor/records/step_table.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "expect_error.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;
using testing::ElementsAre;

TEST(StepTable, KeepsNumbersAndAddsSums) {
  StepTable table;
  table.add({{"step", 1}, {"loss", 3.5}, {"num_tokens", 100}, {"step_time_s", 2}, {"note", "text"}});
  table.add({{"step", 2}, {"loss", nullptr}, {"num_tokens", 50}, {"step_time_s", 0.5}, {"skipped", true}});
  const OrderedJson json = table.json(0, 2, 100);
  EXPECT_EQ(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
            R"({"num_steps":2,"step":[1,2],"columns":{"elapsed_s":[2.0,2.5],"total_tokens":[100.0,150.0],)"
            R"("loss":[3.5,null],"num_tokens":[100.0,50.0],"step_time_s":[2.0,0.5],"skipped":[null,1.0]}})");
}

TEST(StepTable, AStepThatComesAgainReplacesItAndThoseAfter) {
  StepTable table;
  for (int step = 1; step <= 10; ++step) table.add({{"step", step}, {"num_tokens", 1}, {"loss", step}});
  table.add({{"step", 4}, {"num_tokens", 1}, {"loss", 40}});
  EXPECT_EQ(table.num_rows(), 4);
  EXPECT_EQ(table.last_step(), 4);
  EXPECT_EQ(table.value("loss", 3), 40);
  EXPECT_EQ(table.value("total_tokens", 3), 4);
}

TEST(StepTable, ThinningKeepsEverySpikeAndBothEnds) {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(0, 0.1);
  for (const int64_t num_rows : {100, 4'001, 60'000}) {
    StepTable table;
    const int64_t loss_spike = num_rows / 3;
    const int64_t slow_step = num_rows / 2 + 1;
    for (int64_t step = 1; step <= num_rows; ++step) {
      table.add({{"step", step},
                 {"loss", step == loss_spike ? 50 : 2 + noise(random)},
                 {"tokens_per_second", step == slow_step ? 1 : 100 + noise(random)},
                 {"constant", 5}});
    }
    const std::vector<int64_t> rows = table.thinned(0, num_rows, 1000);
    EXPECT_LE(std::ssize(rows), 1000);
    EXPECT_GE(std::ssize(rows), std::min<int64_t>(num_rows, 500)) << num_rows;
    EXPECT_TRUE(std::ranges::is_sorted(rows));
    EXPECT_EQ(rows.front(), 0);
    EXPECT_EQ(rows.back(), num_rows - 1);
    EXPECT_TRUE(std::ranges::binary_search(rows, loss_spike - 1)) << num_rows;
    EXPECT_TRUE(std::ranges::binary_search(rows, slow_step - 1)) << num_rows;
    table.thin(1000);
    EXPECT_EQ(table.num_rows(), std::ssize(rows));
    EXPECT_EQ(table.last_step(), num_rows);
  }
}

TEST(StepTable, ARangeHasAllItsStepsWhenTheyFit) {
  StepTable table;
  for (int step = 10; step <= 5000; ++step) table.add({{"step", step}, {"loss", step}});
  const OrderedJson json = table.json(4000, 4003, 100);
  EXPECT_EQ(json["num_steps"], 4);
  EXPECT_THAT(json["step"], ElementsAre(4000, 4001, 4002, 4003));
  EXPECT_EQ(table.json(6000, 7000, 100)["num_steps"], 0);
  EXPECT_EQ(table.json(20, 11, 100)["num_steps"], 0);
  EXPECT_EQ(StepTable().json(0, 100, 10)["num_steps"], 0);
}

TEST(StepTable, ValuesThatAreNotFiniteAreLeftOutOfTheSearchForSpikes) {
  StepTable table;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int step = 1; step <= 2000; ++step)
    table.add({{"step", step}, {"loss", step % 2 == 0 ? nan : 1.0}, {"b", nan}});
  EXPECT_LE(std::ssize(table.thinned(0, 2000, 100)), 100);
}

TEST(StepTable, RefusesMoreKindsOfValuesThanARunHas) {
  StepTable table;
  OrderedJson line = {{"step", 1}};
  for (int i = 0; i < 300; ++i) line["field" + std::to_string(i)] = i;
  expect_error(ExitCode::kBadData, {"step 1: expected at most 256 different fields"},
               [&] { table.add(line); });
}

}  // namespace
}  // namespace tessera
