#include "data/chat/media.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

#include "base/text.h"

namespace tessera {
namespace {

using Words = std::vector<std::string>;

template <size_t kSize>
bool is_one_of(std::string_view word, const std::array<std::string_view, kSize>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr std::array<std::string_view, 20> kMediaWords = {
    "image", "images", "img",  "imgs", "video", "videos", "audio", "audios", "pixel", "jpg",
    "jpeg",  "png",    "webp", "gif",  "mp4",   "webm",   "wav",   "mp3",    "flac",  "spectrogram"};
// Names of columns that may hold a text or a file.
constexpr std::array<std::string_view, 21> kFileWords = {
    "file",   "files",  "filename",  "filepath",   "path",       "paths",       "media",
    "speech", "sound",  "clip",      "clips",      "picture",    "pictures",    "photo",
    "photos", "frames", "recording", "screenshot", "attachment", "attachments", "screenshots"};
// Words after one of these that leave the column one of media: a link or the data itself (base64 is "base").
constexpr std::array<std::string_view, 13> kLinks = {"url",      "urls",     "uri",   "uris", "path",
                                                     "paths",    "file",     "files", "name", "names",
                                                     "filename", "filepath", "src"};
constexpr std::array<std::string_view, 13> kForms = {"bytes",  "base",   "b64",    "data",     "array",
                                                     "arrays", "embeds", "values", "features", "tensor",
                                                     "list",   "grid",   "thw"};
// Words before these that say little about the text.
constexpr std::array<std::string_view, 14> kAboutMedia = {
    "has",    "is",    "num",     "no",     "n",         "profile", "avatar",
    "author", "cover", "preview", "banner", "thumbnail", "user",    "channel"};
constexpr std::array<std::string_view, 26> kEndings = {
    "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "heic", "avif", "mp4", "mov",  "avi",
    "mkv", "webm", "mpg", "mpeg", "m4v", "wav", "mp3", "flac", "ogg",  "oga",  "m4a", "opus", "aac"};

// "image_url", "imageUrl" and "image-1" are the words image, url; image, url; image.
Words words_of(std::string_view name) {
  Words words(1);
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    const bool is_digit = std::isdigit(c) != 0 && words.back() != "mp" && words.back() != "b";
    const bool is_start =
        std::isupper(c) != 0 && i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    if (c == '_' || c == '-' || c == '.' || c == ' ' || is_start || is_digit) words.emplace_back();
    if (std::isalnum(c) != 0 && !is_digit) words.back() += static_cast<char>(std::tolower(c));
  }
  std::erase(words, "");
  return words;
}

// Whether the name ends in one of `nouns`, ignoring words for the form.
template <size_t kSize>
MediaName ends_in(Words words, const std::array<std::string_view, kSize>& nouns) {
  MediaName kind = MediaName::kItself;
  while (words.size() > 1 && !is_one_of(words.back(), nouns)) {
    if (is_one_of(words.back(), kLinks)) {
      kind = MediaName::kLink;
    } else if (!is_one_of(words.back(), kForms)) {
      break;
    }
    words.pop_back();
  }
  const bool found =
      !words.empty() && is_one_of(words.back(), nouns) && !is_one_of(words.front(), kAboutMedia);
  return found ? kind : MediaName::kNone;
}

bool names_media_file(std::string_view text) {
  constexpr size_t kMaxLength = 2000;
  if (text.size() > kMaxLength || text.find('\n') != text.npos) return false;
  text = text.substr(0, text.find_first_of("?#"));
  const size_t dot = text.rfind('.');
  return dot != text.npos && is_one_of(lower_case(std::string(text.substr(dot + 1))), kEndings);
}

bool is_encoded_media(std::string_view text) {
  for (const std::string_view start : {"data:image/", "data:video/", "data:audio/"}) {
    if (text.starts_with(start)) return true;
  }
  constexpr size_t kMinLength = 64;
  if (text.size() < kMinLength || text.find_first_of(" \t") != text.npos) return false;
  // Base64 of PNG, JPEG, GIF, RIFF (WebP, WAV, AVI), ID3, Ogg, FLAC.
  for (const std::string_view start : {"iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "SUQz", "T2dnUw", "ZkxhQ"}) {
    if (text.starts_with(start)) return true;
  }
  return false;
}

// `digits` are the first bytes in hexadecimal, as the Parquet reader returns binary values.
bool is_start_of_media(std::string_view digits) {
  for (const std::string_view start : {"89504e47", "ffd8ff", "47494638", "52494646", "494433", "fffb",
                                       "4f676753", "664c6143", "1a45dfa3", "49492a00", "4d4d002a"}) {
    if (digits.starts_with(start)) return true;
  }
  return digits.size() >= 16 && digits.substr(8, 8) == "66747970";  // MP4 and what is built as it is
}

bool is_media_object(const Value& value, bool names_files) {
  const Value* bytes = value.find("bytes");
  const std::string* path = value.find_string("path");
  const Value* array = value.find("array");
  if (array != nullptr && !array->is_null() && value.find("sampling_rate") != nullptr) return true;
  const bool has_bytes = bytes != nullptr && !bytes->is_null();
  if (value.object()->size() == 1 && has_bytes) {
    // The second is a struct of bytes, whose null fields are left out.
    return bytes->string() != nullptr ? is_start_of_media(*bytes->string()) : bytes->find("bytes") != nullptr;
  }
  const bool has_both = bytes != nullptr && value.find("path") != nullptr;
  if (value.object()->size() == 2 && has_both && (has_bytes || path != nullptr)) return true;
  if (path != nullptr && value.object()->size() == 1 && names_media_file(*path)) return true;
  if (!names_files) return false;
  for (const char* name : {"url", "path", "src", "image_url", "file"}) {
    const std::string* file = value.find_string(name);
    if (file != nullptr && names_media_file(*file)) return true;
  }
  return false;
}

bool is_media_value(const Value& value, bool names_files) {
  if (const std::string* text = value.string())
    return is_encoded_media(*text) || (names_files && names_media_file(*text));
  if (const Value::List* items = value.list()) {
    return std::any_of(items->begin(), items->end(),
                       [names_files](const Value& item) { return is_media_value(item, names_files); });
  }
  return value.object() != nullptr && is_media_object(value, names_files);
}

struct Form {
  std::string_view text;
  bool is_token;              // of a model, which no other text has
  std::string_view end = {};  // with it, the text is in a markup language
};

constexpr std::array<Form, 22> kPlaceholders = {{
    {"<image>", false, "</image>"},
    {"<video>", false, "</video>"},
    {"<audio>", false, "</audio>"},
    {"<|image_pad|>", true},
    {"<|video_pad|>", true},
    {"<|audio_pad|>", true},
    {"<|vision_start|>", true},
    {"<|image|>", true},
    {"<|video|>", true},
    {"<|audio|>", true},
    {"<|AUDIO|>", true},
    {"<|audio_bos|>", true},
    {"<|image_1|>", true},
    {"<|audio_1|>", true},
    {"<image_soft_token>", true},
    {"<audio_soft_token>", true},
    {"<start_of_image>", true},
    {"<image_placeholder>", true},
    {"<IMG_CONTEXT>", true},
    {"<ImageHere>", true},
    {"<fake_token_around_image>", true},
    {"[IMG]", false, "[/IMG]"},
}};

// Whether text[begin, end) has its line to itself, apart from others of the kind.
bool is_line_alone(std::string_view text, size_t begin, std::string_view form) {
  const size_t start = text.rfind('\n', begin) == text.npos ? 0 : text.rfind('\n', begin) + 1;
  std::string_view line = text.substr(start, text.find('\n', begin) - start);
  while (!line.empty()) {
    const bool is_form = line.starts_with(form);
    if (!is_form && line.front() != ' ' && line.front() != '\t' && line.front() != '\r') return false;
    line.remove_prefix(is_form ? form.size() : 1);
  }
  return text.size() > form.size();
}

}  // namespace

MediaName media_name(std::string_view column) {
  return column == "input_features" ? MediaName::kItself : ends_in(words_of(column), kMediaWords);
}

bool is_media(std::string_view column, const Value& value) {
  const Words words = words_of(column);
  return is_media_value(value, ends_in(words, kMediaWords) != MediaName::kNone ||
                                   ends_in(words, kFileWords) != MediaName::kNone);
}

MediaPlaceholder find_media_placeholder(std::string_view text) {
  constexpr int kMaxTries = 100;  // each looks through a line
  MediaPlaceholder found;
  int num_tries = 0;
  for (size_t at = text.find_first_of("<["); at != text.npos && num_tries < kMaxTries;
       at = text.find_first_of("<[", at + 1)) {
    const auto* const form = std::find_if(kPlaceholders.begin(), kPlaceholders.end(),
                                          [&](const Form& f) { return text.substr(at).starts_with(f.text); });
    if (form == kPlaceholders.end()) continue;
    ++num_tries;
    if (!form->end.empty() && text.find(form->end) != text.npos) continue;
    // "<video>" is an element of HTML, about which people ask.
    const bool is_first =
        at == text.find_first_not_of(" \t\r\n") && form->text == "<image>" && text.size() > form->text.size();
    const bool is_plain = form->is_token || is_first || is_line_alone(text, at, form->text);
    if (found.text.empty() || is_plain) found = {form->text, is_plain};
    if (is_plain) break;
  }
  return found;
}

}  // namespace tessera
