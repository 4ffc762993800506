// From conversations to a chat model that talks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "e2e/tiny_model.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

std::string conversations(int64_t count) {
  std::string lines;
  for (int64_t i = 0; i < count; ++i) {
    const json row = {{"messages",
                       {{{"role", "user"}, {"content", "Say the word " + std::to_string(i)}},
                        {{"role", "assistant"}, {"content", "The word is here."}}}}};
    lines += row.dump() + "\n";
  }
  return lines;
}

class ChatData : public ::testing::Test {
 protected:
  ChatData() { chats_ = tiny_.folder.write("chats.jsonl", conversations(40)); }

  std::vector<std::string> preview(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"data", "preview", "--model", tiny_.model, "--dataset"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  TinyModel tiny_;
  std::string chats_;
};

TEST_F(ChatData, PreviewShowsRowsAsTheModelSeesThem) {
  const ProcessResult shown =
      run_well(preview({chats_, "--chat_template", "chatml", "--assistant_only_loss", "--num_rows", "2"}));
  EXPECT_THAT(shown.out, StartsWith("{+...+}: targets of the loss\n\n--- row 0: "));
  EXPECT_THAT(shown.out, HasSubstr("<|im_start|>user\nSay the word 0<|im_end|>\n<|im_start|>assistant\n"
                                   "{+The word is here.<|im_end|>\n+}"));
  EXPECT_THAT(shown.out, HasSubstr("Say the word 1"));
  EXPECT_THAT(shown.out, Not(HasSubstr("Say the word 2")));

  const ProcessResult rows = run_well(
      preview({chats_, "--chat_template", "chatml", "--assistant_only_loss", "--num_rows", "3", "--json"}));
  std::istringstream lines(rows.out);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line); ++number) {
    const json row = json::parse(line);
    EXPECT_EQ(row["row"], number);
    EXPECT_THAT(row["text"].get<std::string>(),
                StartsWith("<|im_start|>user\nSay the word " + std::to_string(number)));
    ASSERT_EQ(row["labels"].size(), row["input_ids"].size());
    EXPECT_EQ(row["labels"].front(), -100);
    EXPECT_EQ(row["labels"].back(), row["input_ids"].back());
  }
  EXPECT_EQ(number, 3);

  const ProcessResult packed =
      run_well(preview({tiny_.text_file, "--text_per_line", "--packing", "--max_length", "64"}));
  EXPECT_THAT(packed.out, HasSubstr("~~~~ document 2 of this row\n<|begin_of_text|>{+"));

  // Nothing predicts the first token.
  const ProcessResult plain = run_well(preview({tiny_.text_file, "--text_per_line", "--num_rows", "1"}));
  EXPECT_THAT(plain.out, HasSubstr("text.txt: line 1\n<|begin_of_text|>{+"));
}

TEST_F(ChatData, PreviewAndEvalPackAsTrainDoes) {
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += json{{"text", std::string(static_cast<size_t>(3 + i), 'x')}}.dump() + "\n";
  const std::string texts = tiny_.folder.write("texts.jsonl", lines);
  const auto packed = [&](const std::string& strategy) {
    return run_well(preview({texts, "--packing", "--max_length", "32", "--packing_strategy", strategy,
                             "--truncation_mode", "keep_start"}))
        .out;
  };
  const std::string second = "~~~~ document 2 of this row";
  EXPECT_THAT(packed("auto"), HasSubstr(second));
  EXPECT_EQ(packed("auto"), packed("bfd"));
  EXPECT_NE(packed("in_order"), packed("bfd"));
  EXPECT_THAT(packed("in_order"), HasSubstr(second));
  EXPECT_THAT(packed("wrapped"), Not(HasSubstr(second)));
  EXPECT_EQ(run_tessera(preview({texts, "--truncation_mode", "keep_end"})).exit_code, 64);
  EXPECT_EQ(run_tessera(preview({texts, "--packing_cross_document_attention"})).exit_code, 78);
  std::string ids;
  for (int i = 0; i < 6; ++i) ids += json{{"input_ids", std::vector<int>(9, 5)}}.dump() + "\n";
  const std::string tokens = tiny_.folder.write("ids.jsonl", ids);
  const auto rows = [&](const std::string& strategy) {
    return json::parse(run_well({"eval", "--model", tiny_.model, "--dataset", tokens, "--eval_packing",
                                 "--max_length", "16", "--packing_strategy", strategy, "--json"})
                           .out)["num_rows"]
        .get<int64_t>();
  };
  EXPECT_EQ(rows("auto"), 6);
  EXPECT_EQ(rows("wrapped"), 4);
  const ProcessResult refused = run_tessera({"eval", "--model", tiny_.model, "--dataset", "a=" + texts});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.err, HasSubstr("several evaluation sets by name are for train"));
}

TEST_F(ChatData, WhatIsMissingOrWrongIsSaidInOneLine) {
  ProcessResult refused = run_tessera(preview({chats_}));
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.err, HasSubstr("the model has no chat template"));
  const std::string bad =
      tiny_.folder.write("bad.jsonl", conversations(1) + "{\"messages\": 5}\n" + conversations(1));
  refused = run_tessera(preview({bad, "--chat_template", "chatml"}));
  EXPECT_EQ(refused.exit_code, 65);
  EXPECT_THAT(refused.errors(),
              testing::ElementsAre(HasSubstr("bad.jsonl: line 2: column 'messages': expected a list")));
  const ProcessResult skipped = run_well(preview({bad, "--chat_template", "chatml", "--skip_bad_rows"}));
  EXPECT_THAT(skipped.err, HasSubstr("skipped 1 row; the first: "));
  EXPECT_THAT(skipped.out, HasSubstr("--- row 1"));
  EXPECT_EQ(run_tessera({"data", "preview", "--dataset", chats_}).exit_code, 64);
  EXPECT_EQ(run_tessera({"data"}).exit_code, 64);

  const fs::path tokenizer = fs::path(tiny_.model) / "tokenizer.json";
  json tokens = json::parse(read_file(tokenizer));
  json more = tokens["added_tokens"].back();
  more["id"] = json::parse(read_file(fs::path(tiny_.model) / "config.json"))["vocab_size"];
  more["content"] = "<|more|>";
  tokens["added_tokens"].push_back(more);
  std::ofstream(tokenizer) << tokens;
  refused = run_tessera({"chat", "--model", tiny_.model, "--chat_template", "chatml"}, {.input = "<|more|>"});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.errors(), testing::ElementsAre(HasSubstr("config.json only vocab_size")));
}

TEST_F(ChatData, StatsCountRowsTokensAndPadding) {
  const ProcessResult stats =
      run_well({"data", "stats", "--model", tiny_.model, "--dataset", chats_, tiny_.text_file,
                "--text_per_line", "--chat_template", "chatml", "--json"});
  const json found = json::parse(stats.out);
  EXPECT_EQ(found["files"].size(), 2u);
  EXPECT_EQ(found["num_rows"],
            found["files"][0]["num_rows"].get<int64_t>() + found["files"][1]["num_rows"].get<int64_t>());
  EXPECT_GT(found["padding_share"], 0.05);
  EXPECT_LT(found["padding_share"], 0.9);
  int64_t rows = 0;
  for (const json& bucket : found["histogram"]) rows += bucket["num_rows"].get<int64_t>();
  EXPECT_EQ(rows, found["num_rows"]);
  const ProcessResult text =
      run_well({"data", "stats", "--model", tiny_.model, "--dataset", tiny_.text_file, "--text_per_line"});
  EXPECT_THAT(text.out, HasSubstr("padding "));
}

TEST_F(ChatData, AModelTrainedOnAnswersKeepsTheTemplateAndTalks) {
  const std::string out = tiny_.folder / "chat";
  run_well({"train",
            "--model",
            tiny_.model,
            "--dataset",
            chats_,
            "--chat_template",
            "chatml",
            "--assistant_only_loss",
            "--packing",
            "--max_length",
            "128",
            "--max_steps",
            "30",
            "--learning_rate",
            "3e-3",
            "--per_device_train_batch_size",
            "2",
            "--validation_split_percentage",
            "10",
            "--eval_strategy",
            "epoch",
            "--cache_dir",
            tiny_.folder / "cache",
            "--output_dir",
            out});
  EXPECT_THAT(read_file(fs::path(out) / "chat_template.jinja"), HasSubstr("<|im_start|>"));
  const json state = json::parse(read_file(fs::path(out) / "trainer_state.json"));
  double eval_loss = 0;
  for (const json& entry : state["log_history"]) eval_loss = entry.value("eval_loss", eval_loss);
  EXPECT_GT(eval_loss, 0);
  EXPECT_LT(eval_loss, 4);  // random: 5.8
  const ProcessResult again =
      run_well({"chat", "--model", out, "--temperature", "0", "--max_new_tokens", "12"},
               {.input = "Say the word 3\n/reset\n\nSay the word 3\n/clear\nSay the word 3"});
  EXPECT_EQ(std::count(again.out.begin(), again.out.end(), '\n'), 3) << again.out;
  const size_t third = again.out.size() / 3;
  const std::string first = again.out.substr(0, third);
  EXPECT_EQ(again.out, first + first + first) << "a new conversation knows nothing of the old one";
}

// Without its tokenizer, as PEFT saves adapters, it has that of its model.
TEST_F(ChatData, AnAdapterTalksWithItsOwnTemplate) {
  const std::string adapter = tiny_.folder / "adapter";
  run_well({"train", "--model", tiny_.model, "--dataset", chats_, "--chat_template", "chatml", "--peft",
            "lora", "--max_steps", "1", "--cache_dir", tiny_.folder / "cache", "--output_dir", adapter});
  const auto answer = [&](std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.end(), {"--temperature", "0", "--max_new_tokens", "4"});
    return run_well(arguments, {.input = input}).out;
  };
  const std::string expected = answer({"chat", "--model", adapter}, "Say the word 3");
  EXPECT_EQ(answer({"chat", "--model", tiny_.model, "--adapter", adapter}, "Say the word 3"), expected);
  run_well({"eval", "--model", tiny_.model, "--adapter", adapter, "--dataset", chats_});
  const std::string text = answer({"generate", "--model", adapter, "--prompt", "word"});
  fs::remove(fs::path(adapter) / "tokenizer.json");
  EXPECT_EQ(answer({"generate", "--model", adapter, "--prompt", "word"}), text);
}

TEST_F(ChatData, CtrlCStopsAnAnswerNotTheProgram) {
  // Room for an answer of some seconds.
  json config = json::parse(read_file(fs::path(tiny_.model) / "config.json"));
  config["max_position_embeddings"] = 8192;
  tiny_.folder.write((fs::path(tiny_.model).filename() / "config.json").string(), config.dump());
  bool sent = false;
  ProcessOptions options = {.input = "Say the word 3\n"};
  options.on_output = [&](pid_t pid, const std::string& out, const std::string&) {
    if (!sent && out.size() > 4) {
      sent = true;
      kill(pid, SIGINT);
    }
  };
  const ProcessResult chat =
      run_tessera({"chat", "--model", tiny_.model, "--chat_template", "chatml", "--temperature", "0",
                   "--max_new_tokens", "8000", "--context_length", "8192"},
                  options);
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_TRUE(sent);
  EXPECT_THAT(chat.out, HasSubstr(" ...\n"));
}

}  // namespace
}  // namespace tessera
