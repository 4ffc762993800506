#include "tokenizer/settings/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/json.h"
#include "formats/json_problem.h"

namespace tessera {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxTokens = size_t{1} << 26;

int64_t parse_exponent(std::string_view text) {
  const bool is_negative = text.starts_with('-');
  if (text.starts_with('+') || is_negative) text.remove_prefix(1);
  int64_t value = 0;
  for (const char digit : text) value = std::min<int64_t>(value * 10 + (digit - '0'), 100'000);
  return is_negative ? -value : value;
}

// A score as serde_json reads it, with which tokenizers reads the file: up to 19 digits as an integer,
// rounded to a double and then scaled by a power of ten, so that one score in seven differs from the nearest
// double in its last bit. This decides between cuts that are equally probable.
double score_of(std::string_view number) {
  const bool is_negative = number.starts_with('-');
  if (is_negative) number.remove_prefix(1);
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool is_full = false;  // digits that no longer fit are dropped
  bool after_point = false;
  size_t at = 0;
  for (; at < number.size() && number[at] != 'e' && number[at] != 'E'; ++at) {
    if (number[at] == '.') {
      // After an integer part that was too long the digits of the fraction are tried anew.
      after_point = true;
      is_full = false;
      continue;
    }
    const auto digit = static_cast<uint64_t>(number[at] - '0');
    constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
    is_full = is_full || digits > kMax / 10 || (digits == kMax / 10 && digit > kMax % 10);
    if (!is_full) digits = digits * 10 + digit;
    exponent += after_point ? (is_full ? 0 : -1) : (is_full ? 1 : 0);
  }
  if (at < number.size()) exponent += parse_exponent(number.substr(at + 1));
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  // The table is exact to the nearest double, as serde_json's is.
  const double power =
      std::strtod(fmt::format("1e{}", std::min<int64_t>(std::abs(exponent), 308)).c_str(), nullptr);
  value = exponent >= 0 ? value * power : value / power;
  return is_negative ? -value : value;
}

// Receives the events of nlohmann's parser. Values go to the document, except in model.vocab and
// model.merges, where they go to the tables.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Reader(std::string_view text, const std::string& origin, TokenizerFile* file)
      : text_(text), origin_(origin), file_(file) {}

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_float(double value, const std::string& text) override {
    return mode_ == Mode::kPiece ? score(score_of(text)) : scalar(value);
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not part of JSON

  bool number_integer(int64_t value) override {
    if (mode_ == Mode::kPiece) return score(static_cast<double>(value));
    return mode_ == Mode::kVocab ? token_id(value) : scalar(value);
  }
  bool number_unsigned(uint64_t value) override {
    if (mode_ == Mode::kPiece) return score(static_cast<double>(value));
    if (mode_ != Mode::kVocab) return scalar(value);
    constexpr auto kMax = std::numeric_limits<int64_t>::max();
    return token_id(value > uint64_t{kMax} ? kMax : static_cast<int64_t>(value));
  }

  bool string(std::string& value) override {
    switch (mode_) {
      case Mode::kDocument:
        return scalar(std::move(value));
      case Mode::kVocab:
      case Mode::kPieces:
        return scalar(std::move(value));  // an error
      case Mode::kPiece:
        if (++piece_size_ != 1) unexpected("two texts");
        key_ = std::move(value);
        return true;
      case Mode::kMerges:
        return spaced_merge(value);
      case Mode::kMergePair:
        if (pair_size_ < pair_.size()) pair_[pair_size_] = std::move(value);
        ++pair_size_;
        return true;
    }
    return false;
  }

  bool start_object(size_t) override {
    if (mode_ != Mode::kDocument) unexpected("an object");
    if (at_model_field("vocab")) {
      mode_ = Mode::kVocab;
      clear_vocabulary();
      return true;
    }
    open(nlohmann::json::object());
    return true;
  }

  bool key(std::string& value) override {
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kDocument;
    } else {
      close();
    }
    return true;
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMergePair;
      pair_size_ = 0;
      return true;
    }
    if (mode_ == Mode::kPieces) {
      mode_ = Mode::kPiece;
      piece_size_ = 0;
      return true;
    }
    if (mode_ != Mode::kDocument) unexpected("a list");
    if (at_model_field("vocab")) {
      mode_ = Mode::kPieces;
      clear_vocabulary();
      file_->has_scores = true;
      return true;
    }
    if (at_model_field("merges")) {
      mode_ = Mode::kMerges;
      file_->has_merges = true;
      file_->tables.merges.clear();
      return true;
    }
    open(nlohmann::json::array());
    return true;
  }

  bool end_array() override {
    if (mode_ == Mode::kMergePair) {
      if (pair_size_ != 2) bad_merge(fmt::format("a list of {}", pair_size_));
      add_merge(pair_[0], pair_[1]);
      mode_ = Mode::kMerges;
    } else if (mode_ == Mode::kPiece) {
      if (piece_size_ != 2) unexpected(fmt::format("a list of {}", piece_size_));
      mode_ = Mode::kPieces;
    } else if (mode_ == Mode::kMerges || mode_ == Mode::kPieces) {
      mode_ = Mode::kDocument;
    } else {
      close();
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    fail(ExitCode::kBadData, "{}: not valid JSON: {}", origin_, json_problem(text_).text());
  }

 private:
  enum class Mode { kDocument, kVocab, kPieces, kPiece, kMerges, kMergePair };

  bool at_model_field(std::string_view field) const {
    return stack_.size() == 2 && key_ == field && stack_[0]->is_object() && top_key_ == "model";
  }

  template <typename Value>
  bool scalar(Value&& value) {
    if (mode_ != Mode::kDocument) unexpected(found_text(nlohmann::json(value)));
    place(std::forward<Value>(value));
    return true;
  }

  // Inserts a value at the parser's current position and returns it.
  nlohmann::json* place(nlohmann::json value) {
    if (stack_.empty()) {
      file_->document = std::move(value);
      return &file_->document;
    }
    nlohmann::json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if (stack_.size() == 1) top_key_ = key_;
    nlohmann::json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }

  void open(nlohmann::json value) {
    if (stack_.size() >= kMaxDepth)
      fail(ExitCode::kBadData, "{}: nested deeper than {} levels", origin_, kMaxDepth);
    stack_.push_back(place(std::move(value)));
  }

  void close() { stack_.pop_back(); }

  [[noreturn]] void unexpected(const std::string& found) const {
    if (mode_ == Mode::kVocab) {
      fail(ExitCode::kBadData, "{}: model.vocab[\"{}\"]: expected an id, found {}", origin_, printable(key_),
           printable(found));
    }
    if (mode_ == Mode::kPieces || mode_ == Mode::kPiece) {
      fail(ExitCode::kBadData, "{}: model.vocab[{}]: expected a token and its score, [\"a\", -1.5], found {}",
           origin_, file_->tables.tokens.size() - (piece_size_ > 2 ? 1 : 0), printable(found));
    }
    bad_merge(found);
  }

  [[noreturn]] void bad_merge(const std::string& found) const {
    fail(ExitCode::kBadData,
         "{}: model.merges[{}]: expected two tokens (\"a b\" or [\"a\", \"b\"]), found {}", origin_,
         file_->tables.merges.size(), printable(found));
  }

  bool token_id(int64_t id) {
    // The bound for any vocabulary; ids are checked against its actual size later.
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
      fail(ExitCode::kBadData, "{}: model.vocab[\"{}\"]: the id {} is out of range", origin_, printable(key_),
           id);
    }
    add_token(static_cast<int32_t>(id));
    return true;
  }

  bool score(double value) {
    if (++piece_size_ != 2) unexpected("a number");
    file_->tables.scores.push_back(value);
    add_token(static_cast<int32_t>(file_->tables.tokens.size()));
    return true;
  }

  void clear_vocabulary() {
    file_->has_vocab = true;
    file_->has_scores = false;
    file_->tables.tokens.clear();
    file_->tables.scores.clear();
  }

  void add_token(int32_t id) {
    if (file_->tables.tokens.size() >= kMaxTokens)
      fail(ExitCode::kBadData, "{}: model.vocab: more than {} tokens", origin_, kMaxTokens);
    const uint32_t begin = append(key_);
    file_->tables.tokens.push_back({begin, static_cast<uint32_t>(key_.size()), id});
  }

  bool spaced_merge(const std::string& text) {
    if (text.starts_with("#version")) return true;  // the first line of a merges.txt
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      bad_merge("\"" + text + "\"");
    add_merge(std::string_view(text).substr(0, space), std::string_view(text).substr(space + 1));
    return true;
  }

  void add_merge(std::string_view left, std::string_view right) {
    const uint32_t begin = append(left);
    append(right);
    file_->tables.merges.push_back(
        {begin, static_cast<uint32_t>(left.size()), static_cast<uint32_t>(right.size())});
  }

  uint32_t append(std::string_view text) {
    std::string& all = file_->tables.text;
    const size_t begin = all.size();
    if (begin + text.size() > std::numeric_limits<uint32_t>::max())
      fail(ExitCode::kBadData, "{}: the vocabulary has more than 4 GiB of text", origin_);
    all += text;
    return static_cast<uint32_t>(begin);
  }

  std::string_view text_;
  const std::string& origin_;
  TokenizerFile* file_;
  std::vector<nlohmann::json*>
      stack_;            // the open objects and lists; a parent never grows while a child is open
  std::string key_;      // of the next value
  std::string top_key_;  // the open top-level field of the document
  Mode mode_ = Mode::kDocument;
  std::array<std::string, 2> pair_;
  size_t pair_size_ = 0;
  size_t piece_size_ = 0;  // parts so far of an entry of a vocabulary with scores
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& origin) {
  TokenizerFile file;
  check_json_bytes(json, origin);
  Reader reader(json, origin, &file);
  nlohmann::json::sax_parse(json, &reader);
  if (!file.document.is_object())
    fail(ExitCode::kBadData, "{}: expected an object, found {}", origin, found_text(file.document));
  return file;
}

}  // namespace tessera
