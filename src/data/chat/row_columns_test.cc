#include "data/chat/row_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "formats/value_json.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kRowPlace = "d.jsonl: line 7";

std::string refusal_of(std::string_view json, RowShape shape, const RowFormat& format = {}) {
  try {
    check_unread_columns(parse_value(json, "d.jsonl"), shape, format, kRowPlace);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "";
}

TEST(RowColumns, ImagesVideoAndAudioAreRefused) {
  for (const char* column : {"image", "images", "video", "videos", "audio", "audios", "pixel_values"}) {
    for (const char* value : {"\"a.png\"", "[\"a.png\"]", "{\"path\": null}", "[[0]]", "7"}) {
      const std::string row = std::string(R"({"text": "<image>a", ")") + column + "\": " + value + "}";
      EXPECT_THAT(refusal_of(row, RowShape::kText),
                  HasSubstr(std::string("line 7: column '") + column + "': expected text, but"))
          << row;
    }
    for (const char* value : {"null", "[]", "\"\"", "[null]"}) {
      const std::string row = std::string(R"({"messages": [{"role": "user", "content": "a"}], ")") + column +
                              "\": " + value + "}";
      EXPECT_EQ(refusal_of(row, RowShape::kMessages), "") << row;
    }
  }
}

TEST(RowColumns, PlaceholdersBesideAnEmptyColumnAreRefused) {
  EXPECT_THAT(refusal_of(R"({"messages": [{"role": "user", "content": "<video> a"}], "videos": null})",
                         RowShape::kMessages),
              HasSubstr("column 'videos': found '<video>' in the text"));
  EXPECT_EQ(refusal_of(R"({"messages": [{"role": "user", "content": "<video> a"}]})", RowShape::kMessages),
            "");
}

TEST(RowColumns, UnwantedAnswersAreRefused) {
  for (const char* mark : {R"("label": false)", R"("kto_tag": false)", R"("label": "False")"}) {
    const std::string row = std::string(R"({"prompt": "a", "completion": "b", )") + mark + "}";
    EXPECT_THAT(refusal_of(row, RowShape::kPromptCompletion), HasSubstr("false marks an unwanted answer"))
        << row;
  }
  EXPECT_EQ(refusal_of(R"({"prompt": "a", "completion": "b", "label": true})", RowShape::kPromptCompletion),
            "");
  // A text's class.
  EXPECT_EQ(refusal_of(R"({"text": "a", "label": false})", RowShape::kText), "");
}

TEST(RowColumns, OtherMarksOfTokensAreRefused) {
  EXPECT_THAT(refusal_of(R"({"input_ids": [1, 2], "loss_mask": [0, 1]})", RowShape::kTokens),
              HasSubstr("column 'loss_mask': not supported: say which tokens are targets with labels"));
  EXPECT_EQ(refusal_of(R"({"input_ids": [1, 2], "token_type_ids": [0, 0]})", RowShape::kTokens), "");
}

TEST(RowColumns, ThoseThatAShapeDoesNotReadAreNamed) {
  const auto unread = [](std::string_view json, RowShape shape, const RowFormat& format = {}) {
    return unread_columns(parse_value(json, "d"), shape, format);
  };
  EXPECT_THAT(
      unread(R"({"id": 1, "messages": [], "score": 0.5, "source": null, "tools": []})", RowShape::kMessages),
      ElementsAre("id", "score"));
  // A prompt of text has no place for a system message.
  EXPECT_THAT(unread(R"({"system": "s", "prompt": "a", "completion": "b", "weight": 2})",
                     RowShape::kPromptCompletion),
              ElementsAre("system", "weight"));
  EXPECT_THAT(unread(R"({"system": "s", "prompt": [], "completion": []})", RowShape::kPromptCompletion),
              IsEmpty());
  RowFormat format;
  format.columns = {{"output", "chosen"}};
  EXPECT_THAT(
      unread(R"({"instruction": "a", "chosen": "b", "rejected": "c"})", RowShape::kInstruction, format),
      ElementsAre("rejected"));
  // By LLaMA-Factory's rules, what is not named is not read.
  format.pairs = PairRules();
  EXPECT_THAT(unread(R"({"instruction": "a", "chosen": "b", "system": "c"})", RowShape::kInstruction, format),
              ElementsAre("instruction", "system"));
  format.pairs.reset();
  // A column that is read under its own name may hold anything.
  format.columns = {{"text", "image"}};
  EXPECT_EQ(refusal_of(R"({"image": "a"})", RowShape::kText, format), "");
}

}  // namespace
}  // namespace tessera
