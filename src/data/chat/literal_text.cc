#include "data/chat/literal_text.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::string_view kMark = "\xEF\xB7\x90";  // U+FDD0, which no text is meant to contain

}  // namespace

LiteralText::LiteralText(const std::vector<std::string>& special_tokens) {
  for (const std::string& token : special_tokens) {
    if (token.size() > 1) special_tokens_.add(token, 0);
  }
}

void LiteralText::mark(std::string* text) const {
  if (text->find(kMark) != std::string::npos)
    fail(ExitCode::kBadData, "expected text without the noncharacter U+FDD0: remove it");
  std::vector<size_t> places;
  StringMatcher::Match match;
  for (int64_t at = 0; special_tokens_.find(*text, at, &match); at = match.begin + 1)
    places.push_back(static_cast<size_t>(match.begin));
  // From the back, so that places stay what they are. A special token starts with a whole character.
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    size_t after = *place + 1;
    while (after < text->size() && (static_cast<unsigned char>((*text)[after]) & 0xC0) == 0x80) ++after;
    text->insert(after, kMark);
  }
}

void LiteralText::mark(Value* value) const {
  if (std::string* text = value->string()) mark(text);
  if (Value::List* items = value->list()) {
    for (Value& item : *items) mark(&item);
  }
  if (Value::Object* fields = value->object()) {
    for (Value::Field& field : *fields) mark(&field.value);
  }
}

void LiteralText::mark(Value::List* messages) const {
  for (Value& message : *messages) {
    const std::string& role = *message.find("role")->string();
    if (role == "system" || role == "assistant") continue;
    for (Value::Field& field : *message.object()) {
      if (field.name != "role") mark(&field.value);
    }
  }
}

std::vector<int64_t> LiteralText::take_marks(std::string* text,
                                             std::vector<std::pair<int64_t, int64_t>>* ranges) const {
  std::vector<int64_t> marked;  // offsets in the text with marks
  for (size_t at = text->find(kMark); at != std::string::npos; at = text->find(kMark, at + kMark.size()))
    marked.push_back(static_cast<int64_t>(at));
  if (marked.empty()) return marked;
  const auto without_marks = [&](int64_t offset) {
    const auto before = std::lower_bound(marked.begin(), marked.end(), offset) - marked.begin();
    return offset - before * std::ssize(kMark);
  };
  for (auto& [begin, end] : *ranges) {
    begin = without_marks(begin);
    end = without_marks(end);
  }
  std::vector<int64_t> places;
  std::string out;
  size_t done = 0;
  for (const int64_t at : marked) {
    out.append(*text, done, static_cast<size_t>(at) - done);
    places.push_back(std::ssize(out));
    done = static_cast<size_t>(at) + kMark.size();
  }
  out.append(*text, done);
  *text = std::move(out);
  return places;
}

}  // namespace tessera
