#include "data/chat/media.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(MediaNames, AreToldFromThoseOfTextsAboutMedia) {
  for (const char* name :
       {"image", "images", "imgs", "jpg", "mp4", "wav", "pixel_values", "pixel_values_videos",
        "image_grid_thw", "input_features", "image_1", "image-bytes", "questionImage", "audio_array"})
    EXPECT_EQ(media_name(name), MediaName::kItself) << name;
  for (const char* name :
       {"image_url", "image_urls", "audio_path", "video_file", "imageFileName", "img_2_path"})
    EXPECT_EQ(media_name(name), MediaName::kLink) << name;
  for (const char* name :
       {"text", "name", "path", "image_caption", "image_id", "has_image", "num_images", "video_title",
        "profile_image_url", "cover_image", "speech", "picture", "", "_", "imagery", "features"})
    EXPECT_EQ(media_name(name), MediaName::kNone) << name;
}

TEST(MediaPlaceholders, ArePlainWhereNoTextAboutThemHasThem) {
  EXPECT_EQ(find_media_placeholder("plain text, a < b, x[0]").text, "");
  EXPECT_EQ(find_media_placeholder("<video><source src=a></video>").text, "");
  EXPECT_EQ(find_media_placeholder("the <audio> element").text, "<audio>");
  EXPECT_FALSE(find_media_placeholder("the <audio> element").is_plain);
  EXPECT_TRUE(find_media_placeholder("the <audio> element, <|audio|>").is_plain);
  std::string many = "see";
  for (int i = 0; i < 1'000'000; ++i) many += " <image>";
  EXPECT_EQ(find_media_placeholder(many).text, "<image>") << "in linear time";
  EXPECT_TRUE(find_media_placeholder("Describe.\n  <image><image> ").is_plain);
}

}  // namespace
}  // namespace tessera
