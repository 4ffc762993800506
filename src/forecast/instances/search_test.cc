// The search for machines: its results equal the forecast of one machine with the same layout.
#include "forecast/instances/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/flags.h"
#include "devices/planned_card.h"
#include "devices/planned_cpu.h"
#include "forecast/forecast.h"
#include "forecast/instances/layout_flags.h"
#include "forecast/instances/search_picture.h"
#include "forecast/instances/search_report.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class SearchTest : public testing::Test {
 protected:
  SearchTest() : config_(preset_config("160m")) {
    config_.vocab_size = 32000;
    declare_training_flags(&table_, &spec_);
    spec_.batch.rows_per_device = 16;
    spec_.data.max_length = 512;
    spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
    spec_ = read_run_spec(table_, spec_, 1);
    job_.num_steps = 1000;
    job_.max_row_tokens = job_.mean_row_tokens = 512;
    job_.num_tokens = 1000.0 * 16 * 512;
    job_.origin = "a test";
    instances_ = select_instances(shipped_catalogue(), {"c7i.*", "r8i.2xlarge", "m8i.96xlarge"});
  }

  SearchResult search() const { return search_instances(spec_, config_, job_, instances_, options_); }

  // The forecast of the layout on its instance.
  RunForecast forecast(const SearchResult& result, const Combination& combination) const {
    const Instance& instance = result.instances[combination.instance];
    const RunLayout& layout = combination.layout;
    ClusterShape cluster;
    cluster.num_nodes = layout.num_nodes;
    cluster.local_world_size = layout.local_world_size;
    cluster.node_memory_bytes = instance.usable_bytes();
    cluster.network_gbps = instance.figures.network_gbps;
    cluster.ops = planned_cpu_ops(instance.figures.amx);
    cluster.rates = rates_of_instance(instance.figures);
    if (result.is_on_cards) {
      cluster.ops = planned_card_ops(instance.card.name, instance.card.usable_bytes());
      cluster.rates = rates_of_card(instance.card.figures, /*optimizer_on_host=*/false);
    }
    const RunSpec run = arguments_for(spec_, layout, result.step_rows);
    return forecast_run(run, config_, cluster, layout.num_threads, job_);
  }

  FlagTable table_;
  RunSettings spec_;
  ModelConfig config_;
  JobSize job_;
  std::vector<Instance> instances_;
  SearchOptions options_;
};

TEST_F(SearchTest, FindsTheMemoryOfTheCardAndTheTimeOnIt) {
  spec_.machine.device = DeviceKind::kCuda;
  config_ = preset_config("llama3.2-1b");
  instances_ =
      select_instances(with_cards(shipped_catalogue()), {"g6.xlarge", "g6e.xlarge", "p4d.*", "p5en.*"});
  options_.num_nodes = options_.local_world_size = 1;
  const SearchResult result = search();
  EXPECT_TRUE(result.is_on_cards);
  ASSERT_EQ(result.combinations.size() + result.refusals.size(), instances_.size());
  ASSERT_GE(result.combinations.size(), 3u);
  for (const Combination& each : result.combinations) {
    const Instance& instance = result.instances[each.instance];
    SCOPED_TRACE(instance.name);
    EXPECT_LE(each.card_bytes, instance.card.usable_bytes());
    EXPECT_EQ(memory_of(spec_, config_, job_, instance, each).device_bytes(), each.card_bytes);
    const RunForecast expected = forecast(result, each);
    EXPECT_EQ(expected.refusal, "");
    EXPECT_EQ(each.card_bytes, expected.memory.device_bytes());
    EXPECT_EQ(each.time.step_s(), expected.time->step_s());
  }
  EXPECT_THAT(table_text(result, {}), HasSubstr("GiB used: of a card"));
}

TEST_F(SearchTest, FindsTheMemoryAndTheTimeOfTheForecastForTheSameLayout) {
  const SearchResult result = search();
  ASSERT_GT(result.combinations.size(), 30u);
  for (const Combination& each : result.combinations) {
    SCOPED_TRACE(result.instances[each.instance].name + " x " + std::to_string(each.layout.num_nodes));
    const RunForecast expected = forecast(result, each);
    EXPECT_EQ(expected.refusal, "");
    EXPECT_EQ(each.node_bytes, expected.memory.node_bytes());
    EXPECT_EQ(each.time.step_s(), expected.time->step_s());
    EXPECT_EQ(each.passes_per_step, expected.zero.passes_per_step);
    EXPECT_EQ(memory_of(spec_, config_, job_, result.instances[each.instance], each).node_bytes(),
              each.node_bytes);
    EXPECT_LE(each.node_bytes, result.instances[each.instance].usable_bytes());
  }
}

TEST_F(SearchTest, DealsAGivenNumberOfRanksToNodes) {
  options_.world_size = 6;
  std::set<int> node_counts;
  for (const Combination& each : search().combinations) {
    EXPECT_EQ(each.layout.world_size(), 6);
    node_counts.insert(each.layout.num_nodes);
  }
  EXPECT_EQ(node_counts, (std::set<int>{1, 2, 3, 6}));
  options_.local_world_size = 3;
  const SearchResult result = search();
  EXPECT_FALSE(result.combinations.empty());
  for (const Combination& each : result.combinations) EXPECT_EQ(each.layout.num_nodes, 2);
}

TEST_F(SearchTest, MoneyAndHoursFollowFromTheStep) {
  const SearchResult result = search();
  for (const Combination& each : result.combinations) {
    const Instance& instance = result.instances[each.instance];
    EXPECT_DOUBLE_EQ(each.hours, 1000 * each.time.step_s() / 3600);
    EXPECT_NEAR(each.usd, each.hours * each.layout.num_nodes * instance.usd_per_hour, 1e-9);
    EXPECT_NEAR(each.spot_usd, each.usd * instance.spot_share, 1e-9);
    EXPECT_NEAR(each.tokens_per_s, 16 * 512 / each.time.step_s(), 1e-6);
    EXPECT_NEAR(*each.kwh, each.hours * each.layout.num_nodes * instance.watts / 1000, 1e-9);
  }
}

TEST_F(SearchTest, EveryCombinationKeepsTheRowsOfAStep) {
  spec_.batch.rows_per_device = 3;
  spec_.batch.accumulation_steps = 7;
  const SearchResult result = search();
  EXPECT_EQ(result.step_rows, 21);
  for (const Combination& each : result.combinations) {
    const RunLayout& layout = each.layout;
    EXPECT_GE(layout.micro_batch_rows * layout.accumulation * layout.world_size(), 21);
    EXPECT_LE(layout.micro_batch_rows * layout.world_size(), 21);
    EXPECT_LT(layout.micro_batch_rows * (layout.accumulation - 1) * layout.world_size(), 21);
  }
}

TEST_F(SearchTest, HasOneCombinationForEachInstanceTypeAndNumberOfNodes) {
  options_.max_nodes = 5;
  std::map<std::pair<size_t, int>, int> counts;
  for (const Combination& each : search().combinations) ++counts[{each.instance, each.layout.num_nodes}];
  for (const auto& [key, count] : counts) {
    EXPECT_EQ(count, 1);
    EXPECT_THAT((std::vector<int>{1, 2, 4}), testing::Contains(key.second));
  }
  EXPECT_EQ(counts.size(), 3 * instances_.size());
}

// The chosen one is the fastest of those that can be asked for one by one.
TEST_F(SearchTest, ChoosesTheFastestNumberOfRanks) {
  instances_ = select_instances(shipped_catalogue(), {"c7i.48xlarge"});
  options_.max_nodes = 1;
  const Combination best = search().combinations.at(0);
  double fastest = INFINITY;
  for (const int ranks : {2, 4}) {
    options_.local_world_size = ranks;
    const Combination each = search().combinations.at(0);
    EXPECT_EQ(each.layout.local_world_size, ranks);
    EXPECT_EQ(each.layout.num_threads, 96 / ranks);
    fastest = std::min(fastest, each.time.step_s());
  }
  EXPECT_EQ(best.time.step_s(), fastest);
}

TEST_F(SearchTest, HonoursWhatIsAskedFor) {
  options_.num_nodes = 3;
  options_.local_world_size = 2;
  options_.zero_stage = 3;
  options_.schedule = GatherSchedule::kPerLayer;
  options_.gradient_checkpointing = true;
  spec_.batch.rows_per_device = 12;
  const SearchResult result = search();
  EXPECT_FALSE(result.combinations.empty());
  for (const Combination& each : result.combinations) {
    EXPECT_EQ(each.layout.num_nodes, 3);
    EXPECT_EQ(each.layout.local_world_size, 2);
    EXPECT_EQ(each.layout.zero_stage, 3);
    EXPECT_EQ(each.layout.schedule, GatherSchedule::kPerLayer);
    EXPECT_TRUE(each.layout.gradient_checkpointing);
    EXPECT_EQ(each.time.step_s(), forecast(result, each).time->step_s());
  }
}

TEST_F(SearchTest, ShardsAndRecomputesOnlyWhereMemoryIsShort) {
  config_ = preset_config("llama3-8b");
  instances_ = select_instances(shipped_catalogue(), {"r8i.*", "m7i.8xlarge"});
  const SearchResult result = search();
  bool any_whole = false, any_sharded = false;
  for (const Combination& each : result.combinations) {
    SCOPED_TRACE(result.instances[each.instance].name + " x " + std::to_string(each.layout.num_nodes));
    const bool is_whole =
        each.layout.schedule == GatherSchedule::kPerStep && !each.layout.gradient_checkpointing;
    (is_whole ? any_whole : any_sharded) = true;
    EXPECT_EQ(each.node_bytes, forecast(result, each).memory.node_bytes());
  }
  EXPECT_TRUE(any_whole);
  EXPECT_TRUE(any_sharded);
}

TEST_F(SearchTest, SaysWhatTheSmallestMachinesLack) {
  config_ = preset_config("llama3-8b");
  options_.max_nodes = 2;
  const SearchResult result = search();
  ASSERT_FALSE(result.refusals.empty());
  for (const Refusal& refusal : result.refusals) {
    const Instance& instance = result.instances[refusal.instance];
    EXPECT_GT(refusal.needed_bytes, instance.usable_bytes()) << instance.name;
    EXPECT_EQ(refusal.num_nodes, 2);
    EXPECT_TRUE(std::ranges::none_of(
        result.combinations, [&](const Combination& each) { return each.instance == refusal.instance; }));
  }
  const std::string text = refusal_text(result, SearchView());
  EXPECT_THAT(text, HasSubstr("c7i.xlarge"));
  EXPECT_THAT(text, HasSubstr("needed on 2 nodes:"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(SearchTest, AStepWithFewerRowsThanRanksFitsNowhere) {
  options_.num_nodes = 32;
  const SearchResult result = search();
  EXPECT_TRUE(result.combinations.empty());
  EXPECT_EQ(result.refusals.size(), instances_.size());
  EXPECT_THAT(refusal_text(result, SearchView()), HasSubstr("more ranks than the 16 rows of a step"));
}

TEST_F(SearchTest, SaysWhyRanksHaveNoPlace) {
  instances_ = select_instances(shipped_catalogue(), {"c7i.xlarge"});
  options_.num_nodes = 1;
  options_.local_world_size = 16;
  EXPECT_THAT(refusal_text(search(), SearchView()), HasSubstr("  more ranks than cores: c7i.xlarge\n"));
  options_.local_world_size = 1;
  spec_.sharding.context_parallel_size = 2;
  EXPECT_THAT(refusal_text(search(), SearchView()),
              HasSubstr("  ranks that context_parallel_size 2 does not divide: c7i.xlarge\n"));
}

TEST_F(SearchTest, ShortRowsTakeLessTimeButTheLongestDecideTheMemory) {
  const SearchResult full = search();
  job_.mean_row_tokens = 128;
  const SearchResult brief = search();
  ASSERT_EQ(full.combinations.size(), brief.combinations.size());
  for (size_t i = 0; i < full.combinations.size(); ++i) {
    const double brief_s = brief.combinations[i].time.step_s(), full_s = full.combinations[i].time.step_s();
    if (full.combinations[i].layout.num_nodes == 1) {
      EXPECT_LT(brief_s, full_s);
    } else {
      EXPECT_LE(brief_s, full_s * (1 + 1e-9)) << "the network may take as long as before";
    }
  }
}

TEST_F(SearchTest, RanksByPriceAndTimeWithinTheLimits) {
  const SearchResult result = search();
  SearchView view;
  view.order = SearchOrder::kPrice;
  view.top = 1000;
  const std::vector<size_t> by_price = ranked(result, view);
  EXPECT_EQ(by_price.size(), result.combinations.size());
  for (size_t i = 1; i < by_price.size(); ++i) {
    EXPECT_LE(result.combinations[by_price[i - 1]].usd, result.combinations[by_price[i]].usd);
  }
  EXPECT_EQ(best_of(result, view), by_price.front());
  view.order = SearchOrder::kTime;
  const std::vector<size_t> by_time = ranked(result, view);
  EXPECT_EQ(best_of(result, view), by_time.front());
  // The two ends of the front.
  const std::vector<size_t> front = front_of(result, view);
  EXPECT_EQ(result.combinations[front.front()].hours, result.combinations[by_time.front()].hours);
  EXPECT_EQ(result.combinations[front.back()].usd, result.combinations[by_price.front()].usd);

  view.max_hours = result.combinations[by_time[4]].hours;
  EXPECT_EQ(ranked(result, view).size(), 5u);
  EXPECT_THAT(refusal_text(result, view), HasSubstr("above --max_hours or --max_price"));
  view.top = 2;
  EXPECT_EQ(ranked(result, view).size(), 2u);
  view.max_price = 1e-6;
  EXPECT_EQ(best_of(result, view), std::nullopt);
}

TEST_F(SearchTest, TableHas80ColumnsAndALineForEachCombination) {
  config_ = preset_config("llama3-8b");
  job_.num_tokens = 15e12;
  job_.num_steps = 1'831'054'688;
  job_.origin = "15 trillion tokens";
  const SearchResult result = search();
  SearchView view;
  view.order = SearchOrder::kTime;
  view.top = 1000;
  const std::string text = table_text(result, view);
  std::istringstream lines(text);
  int num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_GT(num_lines, std::ssize(result.combinations));
  EXPECT_THAT(text, HasSubstr("8,030,261,248 parameters"));
  EXPECT_THAT(text, HasSubstr("on demand, AWS EC2 us-east-1 2026-07-20"));
}

TEST_F(SearchTest, JsonHasEveryCombinationAndTheBest) {
  const SearchResult result = search();
  const SearchView view;
  const json out = json::parse(search_json(result, view, "tessera train"));
  ASSERT_EQ(out["combinations"].size(), result.combinations.size());
  for (size_t i = 0; i < result.combinations.size(); ++i) {
    const json& each = out["combinations"][i];
    const Combination& expected = result.combinations[i];
    EXPECT_EQ(each["instance"], result.instances[expected.instance].name);
    EXPECT_EQ(each["node_bytes"], expected.node_bytes);
    EXPECT_EQ(each["time"]["step_s"], expected.time.step_s());
    EXPECT_EQ(each["usd"], expected.usd);
    EXPECT_EQ(each["is_best"], best_of(result, view) == i);
  }
  EXPECT_EQ(out["job"]["num_steps"], 1000);
  EXPECT_EQ(out["command"], "tessera train");
  EXPECT_EQ(out["instances"].size(), instances_.size());
}

// Opening and closing tags match, and text has no bare '&' or '<'.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    const size_t tag = xml.find('<', at);
    const std::string text = xml.substr(at, tag - at);
    for (size_t i = text.find('&'); i != std::string::npos; i = text.find('&', i + 1)) {
      EXPECT_THAT(text.substr(i, 5), testing::AnyOf(testing::StartsWith("&amp;"), testing::StartsWith("&lt;"),
                                                    testing::StartsWith("&gt;")));
    }
    if (tag == std::string::npos) break;
    const size_t end = xml.find('>', tag);
    ASSERT_NE(end, std::string::npos);
    const std::string body = xml.substr(tag + 1, end - tag - 1);
    EXPECT_EQ(std::ranges::count(body, '"') % 2, 0) << body;
    EXPECT_EQ(body.find('<'), std::string::npos) << body;
    const std::string name = body.substr(0, body.find_first_of(" /", 1));
    if (body.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), body);
      open.pop_back();
    } else if (!body.ends_with('/')) {
      open.push_back(name);
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(SearchTest, PictureIsWellFormedWithAPointForEachCombination) {
  for (Instance& instance : instances_) instance.name += "<&>";
  const SearchResult result = search();
  const std::string picture = search_picture(result, SearchView());
  expect_well_formed(picture);
  size_t num_points = 0;
  for (size_t at = picture.find("<circle"); at != std::string::npos; at = picture.find("<circle", at + 1)) {
    ++num_points;
  }
  EXPECT_EQ(num_points, result.combinations.size());
  EXPECT_THAT(picture, HasSubstr("role=\"img\" aria-labelledby=\"title description\""));
  EXPECT_THAT(picture, HasSubstr("<polyline"));
  EXPECT_THAT(picture, testing::Not(HasSubstr("nan")));

  SearchView none;
  none.max_price = 1e-9;
  expect_well_formed(search_picture(result, none));
  EXPECT_THAT(search_picture(result, none), HasSubstr("No combination fits."));
  instances_ = {instances_.front()};
  options_.max_nodes = 1;
  expect_well_formed(search_picture(search(), SearchView()));
}

TEST_F(SearchTest, TextEndsWithTheCommandsOrTheReason) {
  const SearchResult result = search();
  const std::string text = search_text(result, {}, spec_, config_, "tessera train\n");
  EXPECT_THAT(text, testing::StartsWith(table_text(result, {}) + "\nbest     "));
  EXPECT_THAT(text, HasSubstr("\n  tessera train\n"));
  EXPECT_EQ(why_nothing_fits(result, {}), "");
  SearchView cheap;
  cheap.max_price = 1e-6;
  EXPECT_THAT(search_text(result, cheap, spec_, config_, ""), testing::Not(HasSubstr("best")));
  EXPECT_THAT(why_nothing_fits(result, cheap), HasSubstr("no combination is within --max_hours"));
  instances_ = {instances_.front()};
  instances_.front().memory_bytes = int64_t{64} << 20;
  EXPECT_THAT(why_nothing_fits(search(), {}), HasSubstr("allow more with --max_nodes, or shorten"));
}

TEST(LaunchCommand, HasWhatWasGivenAndTheLayoutsFlags) {
  RunLayout layout = {.num_nodes = 2, .local_world_size = 4, .zero_stage = 3, .micro_batch_rows = 2};
  const std::string command =
      launch_command(layout, 16, {{"model", {"my model"}}, {"zero_stage", {"1"}}}, "DIR");
  EXPECT_EQ(command,
            "tessera launch --nnodes 2 --node_rank 0 --rdzv_endpoint HOST0:29500 \\\n"
            "    --nproc_per_node 4 train --model 'my model' --dataset FILE \\\n"
            "    --output_dir DIR --per_device_train_batch_size 2 \\\n"
            "    --gradient_accumulation_steps 1 --zero_stage 3\n");
  layout = {.micro_batch_rows = 16};
  EXPECT_EQ(launch_command(layout, 16, {{"config", {"run.yaml"}}}, "DIR"),
            "tessera train --config run.yaml --per_device_train_batch_size 16 \\\n"
            "    --gradient_accumulation_steps 1\n");
}

}  // namespace
}  // namespace tessera
