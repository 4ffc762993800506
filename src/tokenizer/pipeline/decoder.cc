#include "tokenizer/pipeline/decoder.h"

#include <cctype>
#include <optional>
#include <utility>

#include "base/text.h"
#include "tokenizer/pipeline/byte_level.h"
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
  int64_t held_ = 0;  // how many are held back, since the token may end after them
};

class ReplaceStage final : public TokenStage {
 public:
  ReplaceStage(const TextPattern& pattern, const std::string& content)
      : pattern_(pattern), content_(content) {}

 protected:
  void token(std::string_view text) override {
    next_->push(replace_all(text, pattern_, content_), /*ends_token=*/true);
  }

 private:
  const TextPattern& pattern_;
  const std::string& content_;
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

// A decoder defined by a function that makes its stage.
template <typename Make>
class DecoderOf final : public Decoder {
 public:
  explicit DecoderOf(Make make) : make_(std::move(make)) {}
  std::unique_ptr<DecodeStage> start() const override { return make_(); }

 private:
  Make make_;
};

template <typename Make>
std::unique_ptr<Decoder> decoder_of(Make make) {
  return std::make_unique<DecoderOf<Make>>(std::move(make));
}

class ByteLevelDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStage> start() const override { return std::make_unique<ByteLevelStage>(); }
  bool is_byte_level() const override { return true; }
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node)
      : pattern_(read_pattern(node["pattern"])), content_(node["content"].string()) {
    node.expect_keys({"type", "pattern", "content"});
    if (std::holds_alternative<Regex>(pattern_) && content_.find('$') != std::string::npos)
      node["content"].not_supported("replacement with a group reference", content_);
  }
  std::unique_ptr<DecodeStage> start() const override {
    return std::make_unique<ReplaceStage>(pattern_, content_);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

std::unique_ptr<Decoder> make_strip(const JsonNode& node) {
  node.expect_keys({"type", "content", "start", "stop"});
  const std::string content = node["content"].one_char();
  const int64_t start = node["start"].integer(0, INT32_MAX);
  const int64_t stop = node["stop"].integer(0, INT32_MAX);
  return decoder_of([=] { return std::make_unique<StripStage>(content, start, stop); });
}

std::unique_ptr<Decoder> make_metaspace(const JsonNode& node) {
  node.expect_keys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string replacement = node["replacement"].one_char();
  const bool legacy = node["add_prefix_space"].boolean_or(true);
  const bool prepended = node["prepend_scheme"].string_or(legacy ? "always" : "never") != "never";
  return decoder_of([=] { return std::make_unique<MetaspaceStage>(replacement, prepended); });
}

std::unique_ptr<Decoder> make_decoder(const JsonNode& node, const std::string& type) {
  if (type == "ByteLevel") {
    node.expect_keys({"type", "add_prefix_space", "use_regex", "trim_offsets"});
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "ByteFallback") {
    node.expect_keys({"type"});
    return decoder_of([] { return std::make_unique<ByteFallbackStage>(); });
  }
  if (type == "Fuse") {
    node.expect_keys({"type"});
    return decoder_of([] { return std::make_unique<FuseStage>(); });
  }
  if (type == "Strip") return make_strip(node);
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(node);
  if (type == "Metaspace") return make_metaspace(node);
  if (type == "BPEDecoder") {
    node.expect_keys({"type", "suffix"});
    return decoder_of([suffix = node["suffix"].string()] { return std::make_unique<SuffixStage>(suffix); });
  }
  node.not_supported("decoder", type);
}

void add_decoders(const JsonNode& node, std::vector<std::unique_ptr<Decoder>>* decoders) {
  const std::string& type = node.type();
  if (type != "Sequence") {
    decoders->push_back(make_decoder(node, type));
    return;
  }
  node.expect_keys({"type", "decoders"});
  for (const JsonNode& part : node["decoders"].list()) add_decoders(part, decoders);
}

}  // namespace

std::vector<std::unique_ptr<Decoder>> make_decoders(const JsonNode& node) {
  std::vector<std::unique_ptr<Decoder>> decoders;
  if (node.is_null()) {
    decoders.push_back(decoder_of([] { return std::make_unique<JoinStage>(); }));
  } else {
    add_decoders(node, &decoders);
  }
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

DecodeStream::DecodeStream(const std::vector<std::unique_ptr<Decoder>>& decoders)
    : starts_byte_level_(!decoders.empty() && decoders.front()->is_byte_level()) {
  for (const auto& decoder : decoders) stages_.push_back(decoder->start());
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
