#include "tokenizer/pipeline/decoder.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/text.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/pipeline/component.h"
#include "tokenizer/regex/regex.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

// A stage that needs whole tokens.
class TokenStage : public DecodeStage {
 public:
  void push(std::string_view fragment, bool ends_token) final {
    if (!ends_token) {
      token_ += fragment;
    } else if (token_.empty()) {
      token(fragment);
    } else {
      token_ += fragment;
      token(std::exchange(token_, {}));
    }
  }

 protected:
  virtual void token(std::string_view text) = 0;

 private:
  std::string token_;
};

// All tokens together spell the bytes of one text. A token with a character outside the alphabet is literal.
class ByteLevelStage final : public TokenStage {
 public:
  void finish() override {
    std::string text;
    utf8_.finish(&text);
    next_->push(text, /*ends_token=*/true);
    next_->finish();
  }

 protected:
  void token(std::string_view text) override {
    const std::optional<std::string> bytes = byte_level_decode(text);
    std::string out;
    utf8_.push(bytes ? std::string_view(*bytes) : text, &out);
    if (!out.empty()) next_->push(out, /*ends_token=*/false);
  }

 private:
  LossyUtf8 utf8_;
};

std::optional<char> byte_of_fallback_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
  };
  const int high = digit(token[3]);
  const int low = digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

// A run of <0xNN> tokens becomes the text of its bytes; if they are not well-formed UTF-8, each byte becomes
// U+FFFD.
class ByteFallbackStage final : public TokenStage {
 public:
  void finish() override {
    flush();
    next_->finish();
  }

 protected:
  void token(std::string_view text) override {
    if (const auto byte = byte_of_fallback_token(text)) {
      bytes_ += *byte;
      return;
    }
    flush();
    next_->push(text, /*ends_token=*/true);
  }

 private:
  void flush() {
    if (bytes_.empty()) return;
    if (is_valid_utf8(bytes_)) {
      next_->push(bytes_, /*ends_token=*/true);
    } else {
      for (size_t i = 0; i < bytes_.size(); ++i) next_->push(kReplacement, /*ends_token=*/true);
    }
    bytes_.clear();
  }

  std::string bytes_;
};

// All tokens become one.
class FuseStage final : public DecodeStage {
 public:
  void push(std::string_view fragment, bool /*ends_token*/) override {
    next_->push(fragment, /*ends_token=*/false);
  }
  void finish() override {
    next_->push({}, /*ends_token=*/true);
    next_->finish();
  }
};

// Removes up to `start` of a character at the beginning of each token and up to `stop` at its end.
class StripStage final : public DecodeStage {
 public:
  StripStage(const std::string& content, int64_t start, int64_t stop)
      : content_(content), start_(start), stop_(stop), left_(start) {}

  void push(std::string_view fragment, bool ends_token) override {
    std::string out;
    while (!fragment.empty()) {
      const std::string_view c = fragment.substr(0, static_cast<size_t>(utf8_size(fragment[0])));
      fragment.remove_prefix(c.size());
      if (c == content_) {
        if (left_ > 0) {
          --left_;
        } else {
          ++held_;
        }
        if (stop_ == 0) release(&out, held_);
      } else {
        left_ = 0;
        release(&out, held_);
        out += c;
      }
    }
    if (ends_token) {
      release(&out, held_ - std::min(held_, stop_));
      left_ = start_;
      held_ = 0;
    }
    if (ends_token || !out.empty()) next_->push(out, ends_token);
  }

 private:
  void release(std::string* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) *out += content_;
    held_ -= count;
  }

  std::string content_;
  int64_t start_;
  int64_t stop_;
  int64_t left_;      // how many may still be removed at the start of this token
  int64_t held_ = 0;  // matches held back, since the token may end after them
};

class ReplaceStage final : public TokenStage {
 public:
  explicit ReplaceStage(std::shared_ptr<const Replacement> replacement)
      : replacement_(std::move(replacement)) {}

 protected:
  void token(std::string_view text) override {
    next_->push(replace_all(text, replacement_->pattern, replacement_->content), /*ends_token=*/true);
  }

 private:
  std::shared_ptr<const Replacement> replacement_;
};

// The replacement character becomes a space; in the first token it is removed if encoding prepended it.
class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(const std::string& replacement, bool prepended)
      : replacement_(replacement), first_(prepended) {}

  void push(std::string_view fragment, bool ends_token) override {
    const std::string out = replace_all(fragment, replacement_, first_ ? "" : " ");
    next_->push(out, ends_token);
    if (ends_token) first_ = false;
  }

 private:
  TextPattern replacement_;
  bool first_;
};

// The end-of-word suffix becomes a space; in the last token it is removed.
class SuffixStage final : public TokenStage {
 public:
  explicit SuffixStage(const std::string& suffix) : suffix_(suffix) {}
  void finish() override {
    emit("");
    next_->finish();
  }

 protected:
  void token(std::string_view text) override {
    emit(" ");
    held_ = std::string(text);
  }

 private:
  void emit(std::string_view replacement) {
    if (held_) next_->push(replace_all(*held_, suffix_, replacement), /*ends_token=*/true);
  }

  TextPattern suffix_;
  std::optional<std::string> held_;
};

// A token that continues a word loses its prefix, every other but the first gets a space in front. `cleanup`
// takes spaces from punctuation and contractions, in each token by itself.
class WordPieceStage final : public TokenStage {
 public:
  WordPieceStage(const std::string& prefix, bool cleanup) : prefix_(prefix), cleanup_(cleanup) {}

 protected:
  void token(std::string_view text) override {
    std::string out(text);
    if (!std::exchange(is_first_, false))
      out = text.starts_with(prefix_) ? out.substr(prefix_.size()) : " " + out;
    next_->push(cleanup_ ? cleaned(std::move(out)) : out, /*ends_token=*/true);
  }

 private:
  static std::string cleaned(std::string text) {
    // All rules begin with a space and one of these characters.
    size_t at = text.find(' ');
    while (at < text.size() &&
           std::string_view(".?!,'nd").find(text.substr(at + 1, 1)) == std::string_view::npos)
      at = text.find(' ', at + 1);
    if (at >= text.size()) return text;
    static constexpr std::pair<const char*, const char*> kRules[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (const auto& [from, to] : kRules) text = replace_all(text, std::string(from), to);
    return text;
  }

  std::string prefix_;
  bool cleanup_;
  bool is_first_ = true;
};

// No decoder: a space between tokens.
class JoinStage final : public DecodeStage {
 public:
  void push(std::string_view fragment, bool ends_token) override {
    if (std::exchange(first_of_token_, ends_token) && !std::exchange(first_, false))
      next_->push(" ", /*ends_token=*/false);
    next_->push(fragment, ends_token);
  }

 private:
  bool first_ = true;
  bool first_of_token_ = true;
};

// A decoder without settings, except `keys` that change nothing.
template <typename Stage>
Decoder plain(const JsonNode& node, std::initializer_list<std::string_view> keys = {"type"}) {
  node.expect_keys(keys);
  return {[] { return std::make_unique<Stage>(); }};
}

Decoder make_byte_level(const JsonNode& node) {
  Decoder decoder = plain<ByteLevelStage>(node, {"type", "add_prefix_space", "use_regex", "trim_offsets"});
  decoder.is_byte_level = true;
  return decoder;
}

Decoder make_replace(const JsonNode& node) {
  return {[replacement = read_replacement(node)] { return std::make_unique<ReplaceStage>(replacement); }};
}

Decoder make_strip(const JsonNode& node) {
  node.expect_keys({"type", "content", "start", "stop"});
  const std::string content = node["content"].one_char();
  const int64_t start = node["start"].integer(0, INT32_MAX);
  const int64_t stop = node["stop"].integer(0, INT32_MAX);
  return {[=] { return std::make_unique<StripStage>(content, start, stop); }};
}

Decoder make_metaspace(const JsonNode& node) {
  node.expect_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string replacement = node["replacement"].one_char();
  const bool legacy = node["add_prefix_space"].boolean_or(true);
  const bool prepended = node["prepend_scheme"].string_or(legacy ? "always" : "never") != "never";
  return {[=] { return std::make_unique<MetaspaceStage>(replacement, prepended); }};
}

Decoder make_suffix(const JsonNode& node) {
  node.expect_keys({"type", "suffix"});
  return {[suffix = node["suffix"].string()] { return std::make_unique<SuffixStage>(suffix); }};
}

Decoder make_word_piece(const JsonNode& node) {
  node.expect_keys({"type", "prefix", "cleanup"});
  return {[prefix = node["prefix"].string(), cleanup = node["cleanup"].boolean()] {
    return std::make_unique<WordPieceStage>(prefix, cleanup);
  }};
}

constexpr std::pair<std::string_view, Decoder (*)(const JsonNode&)> kDecoders[] = {
    {"BPEDecoder", make_suffix},
    {"ByteFallback", [](const JsonNode& node) { return plain<ByteFallbackStage>(node); }},
    {"ByteLevel", make_byte_level},
    {"Fuse", [](const JsonNode& node) { return plain<FuseStage>(node); }},
    {"Metaspace", make_metaspace},
    {"Replace", make_replace},
    {"Strip", make_strip},
    {"WordPiece", make_word_piece},
};

}  // namespace

std::vector<Decoder> make_decoders(const JsonNode& node) {
  if (node.is_null()) return {{[] { return std::make_unique<JoinStage>(); }}};
  std::vector<Decoder> decoders;
  for (const JsonNode& part : components_of(node, "decoders"))
    decoders.push_back(make_component(kDecoders, "decoder", part));
  return decoders;
}

class DecodeStream::Collector final : public DecodeStage {
 public:
  void push(std::string_view fragment, bool /*ends_token*/) override { text_ += fragment; }
  void finish() override {}
  std::string take() { return std::exchange(text_, {}); }

 private:
  std::string text_;
};

DecodeStream::DecodeStream(const std::vector<Decoder>& decoders)
    : starts_byte_level_(!decoders.empty() && decoders.front().is_byte_level) {
  for (const Decoder& decoder : decoders) stages_.push_back(decoder.start());
  auto collector = std::make_unique<Collector>();
  collector_ = collector.get();
  stages_.push_back(std::move(collector));
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->set_next(stages_[i + 1].get());
}

DecodeStream::~DecodeStream() = default;

void DecodeStream::push(std::string_view token, bool is_added) {
  if (is_added && starts_byte_level_) {
    stages_.front()->push(byte_level_encode(token), /*ends_token=*/true);
  } else {
    stages_.front()->push(token, /*ends_token=*/true);
  }
}

void DecodeStream::finish() { stages_.front()->finish(); }

std::string DecodeStream::take() { return collector_->take(); }

}  // namespace tessera
