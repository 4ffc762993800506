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
    for (const char* value : {"null", "[]", "\"\"", "[null]", "{}"}) {
      const std::string row = std::string(R"({"messages": [{"role": "user", "content": "a"}], ")") + column +
                              "\": " + value + "}";
      EXPECT_EQ(refusal_of(row, RowShape::kMessages), "") << row;
    }
  }
}

// {shape, row, what is said; "" = no refusal}
TEST(RowColumns, MediaUnderOtherNamesAreRefusedBesideAnAnswer) {
  const std::string chat = R"("messages": [{"role": "user", "content": "a"}])";
  for (const char* column :
       {R"("image_url": "https://a.b/c")", R"("img": "x")", R"("audio_path": "a.wav")",
        R"("imagePaths": ["a"])", R"("file_name": "0001.PNG")", R"("clip": "a/b.mp4?x=1")",
        R"("thing": {"bytes": null, "path": "a"})", R"("thing": [{"bytes": "89504e47", "path": null}])",
        R"("speech": {"array": [0.5], "sampling_rate": 16000})", R"("input_image_1": "x")",
        R"("shot": "data:image/png;base64,AAAA")", R"("blob": {"bytes": "ffd8ffe0"})"}) {
    EXPECT_THAT(refusal_of("{" + chat + ", " + column + "}", RowShape::kMessages),
                HasSubstr("has images, video"))
        << column;
  }
  for (const char* column :
       {R"("image_caption": "a")", R"("has_image": false)", R"("image": false)", R"("num_images": 2)",
        R"("image_id": 7)", R"("avatar": "a.png")", R"("speech": "My friends, ...")", R"("file": "a.py")",
        R"("blob": {"bytes": "80049500"})", R"("url": "https://a.b/c.png")", R"("picture": "a dog")"}) {
    EXPECT_EQ(refusal_of("{" + chat + ", " + column + "}", RowShape::kMessages), "") << column;
  }
  // A caption is a text without its image.
  EXPECT_EQ(refusal_of(R"({"text": "a", "image_url": "https://a.b/c.png"})", RowShape::kText), "");
  EXPECT_THAT(refusal_of(R"({"text": "a", "png": {"bytes": "89504e47"}})", RowShape::kText),
              HasSubstr("column 'png'"));
}

TEST(RowColumns, PlaceholdersInQuestionsAreRefused) {
  const auto asked = [](const std::string& content) {
    return refusal_of(R"({"messages": [{"role": "user", "content": ")" + content + R"("}]})",
                      RowShape::kMessages);
  };
  for (const char* content :
       {"<image>what?", "What is this?\\n<image>", "<image>\\n<image>\\nCompare.", "<video>\\nWhat?",
        "a <|image_pad|> b", "<|vision_start|><|image_pad|><|vision_end|>a"}) {
    EXPECT_THAT(asked(content), HasSubstr("' in a question: images, video and audio are not supported"))
        << content;
  }
  for (const char* content :
       {"What does <image> mean?", "<video> does not play", "<image>", "<image>a</image>"})
    EXPECT_EQ(asked(content), "") << content;
  EXPECT_THAT(refusal_of(R"({"conversations": [{"from": "human", "value": "<image>\nWhat?"}]})",
                         RowShape::kConversations),
              HasSubstr("found '<image>'"));
  EXPECT_THAT(refusal_of(R"({"instruction": "<image>\nWhat?", "output": "a"})", RowShape::kInstruction),
              HasSubstr("found '<image>'"));
  const std::string answered =
      R"({"messages": [{"role": "user", "content": "Which token?"}, {"role": "assistant", "content": "<|image_pad|>"}]})";
  EXPECT_EQ(refusal_of(answered, RowShape::kMessages), "");
  EXPECT_EQ(media_placeholder_of(parse_value(answered, "d"), RowShape::kMessages, {}), "<|image_pad|>");
}

TEST(RowColumns, PlaceholdersBesideAnEmptyColumnAreRefused) {
  EXPECT_THAT(refusal_of(R"({"messages": [{"role": "user", "content": "<video> a"}], "videos": null})",
                         RowShape::kMessages),
              HasSubstr("column 'videos': found '<video>' in the text"));
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
  // TRL gives it to no template.
  EXPECT_THAT(unread(R"({"system": "s", "prompt": [], "completion": []})", RowShape::kPromptCompletion),
              ElementsAre("system"));
  EXPECT_THAT(unread(R"({"system": "s", "documents": [1], "messages": []})", RowShape::kMessages),
              ElementsAre("system", "documents"));
  EXPECT_THAT(unread(R"({"system": "s", "conversations": []})", RowShape::kConversations), IsEmpty());
  RowFormat format;
  format.columns = {{"system", "system"}};
  EXPECT_THAT(unread(R"({"system": "s", "messages": []})", RowShape::kMessages, format), IsEmpty());
  // A refused column gets no warning as well.
  EXPECT_THAT(unread(R"({"id": 1, "image": "a", "messages": []})", RowShape::kMessages), ElementsAre("id"));
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
