#include "tokenizer/pipeline/charsmap.h"

#include "base/base64.h"
#include "base/text.h"
#include "tokenizer/regex/graphemes.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

constexpr size_t kUnitBytes = 4;
constexpr int64_t kMaxClusterBytes = 5;  // of a cluster that is looked up as a whole

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = kUnitBytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The fields of a unit of Darts-clone's double array.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

Charsmap::Charsmap(const JsonNode& node) {
  const std::optional<std::string> bytes = decode_base64(node.string());
  if (!bytes) node.expected("base64");
  const std::string_view all = *bytes;
  const size_t size = all.size() < kUnitBytes ? 0 : little_endian(all);
  if (size < kUnitBytes || size > all.size() - kUnitBytes)
    node.expected("base64 of a double array, with its size in front, and replacements");
  for (size_t at = kUnitBytes; at + kUnitBytes <= kUnitBytes + size; at += kUnitBytes)
    units_.push_back(little_endian(all.substr(at)));
  replacements_ = all.substr(kUnitBytes + size / kUnitBytes * kUnitBytes);
  if (!is_valid_utf8(replacements_)) node.expected("replacements in UTF-8");
  for (char c = 0; c >= 0 && c < 127; ++c)
    is_plain_[static_cast<size_t>(c)] = c != '\r' && !find(std::string_view(&c, 1));
}

std::optional<std::string_view> Charsmap::find(std::string_view text) const {
  uint32_t at = offset_of(units_[0]);
  for (const char c : text) {
    const uint32_t label = static_cast<unsigned char>(c);
    at ^= label;
    if (label == 0 || at >= units_.size() || label_of(units_[at]) != label) return std::nullopt;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    const size_t begin = at < units_.size() ? value_of(units_[at]) : replacements_.size() + 1;
    const bool is_inside =
        begin <= replacements_.size() &&
        (begin == replacements_.size() || (static_cast<unsigned char>(replacements_[begin]) & 0xC0) != 0x80);
    if (!is_inside) return std::nullopt;
    return std::string_view(replacements_).substr(begin).substr(0, replacements_.find('\0', begin) - begin);
  }
  return std::nullopt;
}

std::optional<std::string> Charsmap::apply(std::string_view text, int64_t max_bytes) const {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    // A character of ASCII before another one, or at the end, is a cluster of its own.
    const auto is_ascii = [&](size_t i) {
      return i >= text.size() || static_cast<unsigned char>(text[i]) < 0x80;
    };
    size_t plain = 0;
    while (plain < text.size() && is_ascii(plain) && is_ascii(plain + 1) &&
           is_plain_[static_cast<unsigned char>(text[plain])]) {
      ++plain;
    }
    if (plain > 0) {
      out += text.substr(0, plain);
      text.remove_prefix(plain);
      if (text.empty() && std::ssize(out) > max_bytes) return std::nullopt;
      continue;
    }
    const auto size = static_cast<size_t>(grapheme_size(text));
    std::string_view cluster = text.substr(0, size);
    text.remove_prefix(size);
    if (cluster.size() <= kMaxClusterBytes) {
      if (const auto whole = find(cluster)) {
        out += *whole;
        cluster = {};
      }
    }
    while (!cluster.empty()) {
      const std::string_view c = cluster.substr(0, static_cast<size_t>(utf8_size(cluster[0])));
      out += find(c).value_or(c);
      cluster.remove_prefix(c.size());
    }
    if (std::ssize(out) > max_bytes) return std::nullopt;
  }
  return out;
}

}  // namespace tessera
