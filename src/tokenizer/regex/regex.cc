#include "tokenizer/regex/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <ctime>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

// PCRE2's match limit: ordinary patterns need few backtracking steps; one of exponential cost is stopped
// within about a second.
constexpr uint32_t kMatchLimit = 10'000'000;
// Stack for JIT-compiled code; for a few patterns its use grows with the length of the match.
constexpr size_t kJitStackMinBytes = 32 * 1024;
constexpr size_t kJitStackMaxBytes = 64 * 1024 * 1024;

// Matches that look through the rest of the text take few steps each, and together the square of the text. A
// text may take this processor time, and as much for each MiB: some hundred times what patterns in use take.
constexpr double kMaxSeconds = 4;
constexpr int64_t kMatchesPerLook = 16;

class TextTime {
 public:
  explicit TextTime(size_t text_bytes)
      : limit_s_(kMaxSeconds * (1 + static_cast<double>(text_bytes) / (1 << 20))) {}
  // Call after each match.
  bool is_over() {
    if (++num_matches_ % kMatchesPerLook != 0) return false;
    if (begin_s_ < 0) begin_s_ = thread_seconds();
    return watch_.seconds() > limit_s_ && thread_seconds() - begin_s_ > limit_s_;
  }
  double limit_s() const { return limit_s_; }

 private:
  static double thread_seconds() {
    timespec now = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  double limit_s_;
  int64_t num_matches_ = 0;
  Stopwatch watch_;
  double begin_s_ = -1;  // of this thread, at the first look
};

// State for matching; one per thread, since a stack of this size is slow to create.
struct MatchScratch {
  MatchScratch()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(kJitStackMinBytes, kJitStackMaxBytes, nullptr)) {
    TESSERA_CHECK(data != nullptr && context != nullptr && stack != nullptr, "out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchScratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

std::string message_of(int error) {
  std::array<unsigned char, 256> buffer;
  const int length = pcre2_get_error_message(error, buffer.data(), buffer.size());
  if (length < 0) return "error " + std::to_string(error);
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(length)};
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, const std::string& where)
    : pattern_(pattern), where_(where), code_(std::make_unique<Code>()) {
  const std::string translated = pcre2_from_oniguruma(pattern, where);
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  TESSERA_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // Ruby's ^ and $ always match at line breaks.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), kOptions,
                              &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code_->code == nullptr) {
    fail(ExitCode::kBadConfig,
         "{}: the regular expression \"{}\" is not supported: {} at offset {} of \"{}\"", where,
         printable(pattern, 200), message_of(error), offset, printable(translated, 400));
  }
  // If this PCRE2 build has no JIT, the interpreter does the work.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<std::pair<int64_t, int64_t>> Regex::find_all(std::string_view text) const {
  std::vector<std::pair<int64_t, int64_t>> found;
  static thread_local const MatchScratch scratch;
  TextTime time(text.size());
  size_t at = 0;
  while (at <= text.size()) {
    if (time.is_over()) {
      fail(ExitCode::kBadConfig,
           "{}: the regular expression \"{}\" takes more than {:.0f} s for a text of {} bytes, of which it "
           "has "
           "seen {}: it looks through the text again and again",
           where_, printable(pattern_, 200), time.limit_s(), text.size(), at);
    }
    const int count = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      fail(ExitCode::kBadConfig,
           "{}: the regular expression \"{}\" gave up on a text of {} bytes at offset {}: {}", where_,
           printable(pattern_, 200), text.size(), at, message_of(count));
    }
    const size_t* ends = pcre2_get_ovector_pointer(scratch.data);
    const auto begin = static_cast<int64_t>(ends[0]);
    const auto end = static_cast<int64_t>(ends[1]);
    // \K can report a start after the end of the match or inside an earlier match.
    const int64_t former_end = found.empty() ? 0 : found.back().second;
    if (begin > end || begin < former_end) {
      fail(ExitCode::kBadConfig, "{}: the regular expression \"{}\" gives overlapping matches", where_,
           printable(pattern_, 200));
    }
    if (begin == end && !found.empty() && former_end == end) {
      at += at < text.size() ? static_cast<size_t>(utf8_size(text[at])) : 1;
      continue;
    }
    found.emplace_back(begin, end);
    at = static_cast<size_t>(end);
  }
  return found;
}

TextPattern read_pattern(const JsonNode& node) {
  if (node.is_string()) return node.string();  // as versions before 0.10 wrote it
  const JsonNode regex = node["Regex"];
  const JsonNode literal = node["String"];
  if (regex.is_null() == literal.is_null()) node.expected("an object with either \"Regex\" or \"String\"");
  if (!regex.is_null()) return Regex(regex.string(), regex.where());
  return literal.string();
}

std::shared_ptr<const Replacement> read_replacement(const JsonNode& node) {
  node.expect_keys({"type", "pattern", "content"});
  auto replacement = std::make_shared<const Replacement>(
      Replacement{read_pattern(node["pattern"]), node["content"].string()});
  if (std::holds_alternative<Regex>(replacement->pattern) &&
      replacement->content.find('$') != std::string::npos)
    node["content"].not_supported("replacement with a group reference", replacement->content);
  return replacement;
}

namespace {

std::vector<std::pair<int64_t, int64_t>> find_literal(std::string_view text, std::string_view literal) {
  std::vector<std::pair<int64_t, int64_t>> found;
  if (literal.empty()) return found;
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    found.emplace_back(at, at + literal.size());
  }
  return found;
}

std::vector<std::pair<int64_t, int64_t>> find_all(std::string_view text, const TextPattern& pattern) {
  if (const auto* literal = std::get_if<std::string>(&pattern)) return find_literal(text, *literal);
  return std::get<Regex>(pattern).find_all(text);
}

}  // namespace

std::vector<TextPart> divide(std::string_view text, const TextPattern& pattern) {
  std::vector<TextPart> parts;
  int64_t at = 0;
  for (const auto& [begin, end] : find_all(text, pattern)) {
    if (at != begin) parts.push_back({at, begin, false});
    parts.push_back({begin, end, true});
    at = end;
  }
  if (const auto size = static_cast<int64_t>(text.size()); at != size) parts.push_back({at, size, false});
  return parts;
}

std::optional<std::string> replace_all(std::string_view text, const TextPattern& pattern,
                                       std::string_view content, int64_t max_bytes) {
  const std::vector<std::pair<int64_t, int64_t>> found = find_all(text, pattern);
  int64_t size = std::ssize(text);
  for (const auto& [begin, end] : found) size += std::ssize(content) - (end - begin);
  if (size > max_bytes) return std::nullopt;
  std::string out;
  out.reserve(static_cast<size_t>(size));
  int64_t at = 0;
  for (const auto& [begin, end] : found) {
    out += text.substr(static_cast<size_t>(at), static_cast<size_t>(begin - at));
    out += content;
    at = end;
  }
  out += text.substr(static_cast<size_t>(at));
  return out;
}

std::string replace_all(std::string_view text, const TextPattern& pattern, std::string_view content) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  std::optional<std::string> out = replace_all(text, pattern, content, kMaxBytes);
  if (!out)
    fail(ExitCode::kBadData, "a text of {} bytes becomes longer than {} by a replacement of the tokenizer",
         text.size(), format_bytes(kMaxBytes));
  return *std::move(out);
}

}  // namespace tessera
