// Refusals of bad "run" objects in a checkpoint's manifest, field by field, and a check that its fields are
// the documented ones.
#include "train/recovery/training_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "test_paths.h"

namespace tessera {
namespace {

TrainingRecord full_record() {
  TrainingRecord record;
  record.arguments = {{"learning_rate", 0.001}};
  record.world_size = 2;
  record.model = {{"hidden_size", 64}};
  record.base = ValueSums{1, 2, ~uint64_t{0}};
  record.data = {.num_rows = 100,
                 .num_tokens = 4000,
                 .fingerprint = "0123abcd",
                 .max_length = 64,
                 .packing = "isolated",
                 .shuffle = true,
                 .seed = 42,
                 .drop_last = false,
                 .micro_batch_size = 2,
                 .gradient_accumulation_steps = 3,
                 .world_size = 2,
                 .global_batch_size = 12};
  record.progress = {.step = 7,
                     .epoch = 0.5,
                     .num_input_tokens_seen = 5000,
                     .total_flos = 1e12,
                     .total_loss = 14.5,
                     .loss_since_log = 2.5,
                     .losses_since_log = 1,
                     .num_updates = 6,
                     .num_skipped_in_a_row = 1,
                     .last_grad_norm = 1.25};
  record.progress.plateau = PlateauState{};
  record.progress.plateau->learning_rate = 0.001;
  record.progress.plateau->best = 2.0;
  record.progress.best = {.metric = "eval_loss",
                          .greater_is_better = false,
                          .value = 2.5,
                          .step = 6,
                          .checkpoint_step = 4,
                          .num_not_better = 1,
                          .checkpoint_folder = "/before/checkpoint-4"};
  record.progress.loss_spikes = {{2.5, 2.25}, {1.0, 1.5}};
  return record;
}

// The first key that fits a module counts, so that patterns with the same keys may mean something else.
TEST(ForbiddenDifferences, NameAnotherOrderOfPatterns) {
  ModelConfig config;
  config.lora.emplace();
  config.lora->alpha_pattern = {{"q_proj", 8}, {"layers.0.self_attn.q_proj", 4}};
  TrainingRecord then, now;
  then.model = model_shape(config);
  std::ranges::reverse(config.lora->alpha_pattern);
  now.model = model_shape(config);
  const std::vector<Difference> found = forbidden_differences(then, now);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].name, "model order of alpha_pattern");
  EXPECT_EQ(found[0].then, R"(["q_proj","layers.0.self_attn.q_proj"])");
  // Checkpoints from before the order was noted.
  then.model.erase("order of alpha_pattern");
  then.model.erase("order of rank_pattern");
  EXPECT_TRUE(forbidden_differences(then, now).empty());
}

Json full_json() { return Json::parse(training_record_json(full_record())); }

// "data.rows"; the fields of `arguments` and `model` do not belong to the record.
void collect_fields(const Json& object, const std::string& prefix, std::vector<std::string>* fields) {
  for (const auto& [name, value] : object.items()) {
    fields->push_back(prefix + name);
    if (value.is_object() && name != "arguments" && name != "model") {
      collect_fields(value, prefix + name + ".", fields);
    }
  }
}

std::vector<std::string> all_fields() {
  std::vector<std::string> fields;
  collect_fields(full_json(), "", &fields);
  return fields;
}

Json::json_pointer pointer_to(std::string field) {
  std::replace(field.begin(), field.end(), '.', '/');
  return Json::json_pointer("/" + field);
}

// One line that names origin and field.
void expect_refused(const Json& changed, const std::string& field) {
  try {
    parse_training_record(changed.dump(), "the manifest");
    ADD_FAILURE() << "taken: " << changed.dump();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ExitCode::kBadData) << message;
    EXPECT_THAT(message, testing::HasSubstr("the manifest: field 'run." + field + "'"));
    EXPECT_THAT(message, testing::HasSubstr("expected "));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

const std::set<std::string> kOptional = {"launch_id",
                                         "base",
                                         "plateau",
                                         "plateau.best",
                                         "eval_loss",
                                         "data.sampling",
                                         "data.splits_documents",
                                         "data.global_batch_size",
                                         "best_model",
                                         "best_model.checkpoint_folder",
                                         "progress.last_grad_norm"};

// Earlier versions had the mean over tokens under the name of the mean over rows.
TEST(TrainingRecordFields, EvaluationsOfEarlierVersionsAreNotComparedWithTodays) {
  Json old = full_json();
  old.erase("eval_loss");
  const TrainingRecord record = parse_training_record(old.dump(), "the manifest");
  EXPECT_EQ(record.progress.best.metric, "eval_loss_per_token");
  EXPECT_EQ(record.progress.best.value, 2.5);
  EXPECT_FALSE(record.progress.plateau->best);
}

TEST(TrainingRecordFields, AllOfThemSurviveWritingAndReading) {
  const std::string text = training_record_json(full_record());
  EXPECT_EQ(training_record_json(parse_training_record(text, "the manifest")), text);
}

TEST(TrainingRecordFields, EveryMissingOneIsNamed) {
  for (const std::string& field : all_fields()) {
    SCOPED_TRACE(field);
    Json changed = full_json();
    const Json::json_pointer at = pointer_to(field);
    changed[at.parent_pointer()].erase(at.back());
    if (kOptional.contains(field)) {
      EXPECT_NO_THROW(parse_training_record(changed.dump(), "the manifest"));
    } else {
      expect_refused(changed, field);
    }
  }
}

TEST(TrainingRecordFields, EveryOneOfAWrongTypeIsNamed) {
  const std::vector<Json> others = {
      Json("text"), Json(1.5), Json(true), Json::array({1, "x"}), Json::object({{"a", 1}}), Json(3)};
  for (const std::string& field : all_fields()) {
    const Json::json_pointer at = pointer_to(field);
    const Json good = full_json()[at];
    for (const Json& other : others) {
      const bool is_same_type =
          other.type() == good.type() || (other.is_number() && good.is_number_float()) ||
          (other.is_number_integer() && good.is_number_integer()) || (other.is_object() && good.is_object());
      if (is_same_type) continue;
      SCOPED_TRACE(fmt::format("{} = {}", field, other.dump()));
      Json changed = full_json();
      changed[at] = other;
      // One wrong element in a list is enough.
      expect_refused(changed, field);
    }
    if (kOptional.contains(field)) continue;
    Json changed = full_json();
    changed[at] = nullptr;
    expect_refused(changed, field);
  }
}

TEST(TrainingRecordFields, EveryCountOutOfRangeIsNamed) {
  const std::set<std::string> may_be_zero = {"data.seed",
                                             "progress.num_input_tokens_seen",
                                             "progress.losses_since_log",
                                             "progress.num_updates",
                                             "progress.num_skipped_in_a_row",
                                             "plateau.num_bad",
                                             "plateau.cooldown_left",
                                             "best_model.checkpoint_step",
                                             "best_model.num_not_better"};
  int num_counts = 0;
  for (const std::string& field : all_fields()) {
    const Json::json_pointer at = pointer_to(field);
    if (!full_json()[at].is_number_integer()) continue;
    ++num_counts;
    for (const Json& value : {Json(-1), Json(0), Json(1e300), Json(uint64_t{1} << 63)}) {
      if (value == 0 && may_be_zero.contains(field)) continue;
      SCOPED_TRACE(fmt::format("{} = {}", field, value.dump()));
      Json changed = full_json();
      changed[at] = value;
      expect_refused(changed, field);
    }
  }
  EXPECT_GE(num_counts, 15);
}

TEST(TrainingRecordFields, ListsOfDifferentLengthAndOtherFormatsAreNamed) {
  Json changed = full_json();
  changed["loss_spikes"]["grad_norms"] = {1.0};
  expect_refused(changed, "loss_spikes.grad_norms");
  changed = full_json();
  changed["format"] = 2;
  expect_refused(changed, "format");
  for (const char* text : {"", "[]", "17", "{", "{\"format\": 1, \"format\": 1}"}) {
    EXPECT_THROW(parse_training_record(text, "the manifest"), Error) << text;
  }
}

// Rows "| `data.rows` | ... |" of the section on the object "run".
TEST(TrainingRecordFields, AreThoseThatAreDocumented) {
  const std::string document = read_text_file(source_folder() / "docs" / "checkpoint-format.md");
  const size_t begin = document.find("## The object `run`");
  ASSERT_NE(begin, std::string::npos);
  std::istringstream section(document.substr(begin, document.find("\n## ", begin + 1) - begin));
  std::vector<std::string> documented;
  for (std::string line; std::getline(section, line);) {
    if (!line.starts_with("| `")) continue;
    documented.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_THAT(documented, testing::UnorderedElementsAreArray(all_fields()));
}

}  // namespace
}  // namespace tessera
