#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/text_input.h"
#include "cli/terminal/terminal.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class DetokenizeCommand : public Command {
 public:
  std::string name() const override { return "detokenize"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "tokenizer", &tokenizer_);
    declare(table, "input", &input_);
    declare(table, "skip_special_tokens", &skip_special_tokens_);
    declare(table, "per_line", &per_line_);
  }

  void run(FlagTable*) override {
    const Tokenizer tokenizer = Tokenizer::open(tokenizer_);
    const std::string text = read_input(input_);
    if (!per_line_) {
      write_result(decode(tokenizer, text, 1));
      return;
    }
    int64_t number = 0;
    for (const std::string_view line : split_lines(text))
      write_result(decode(tokenizer, line, ++number) + "\n");
  }

 private:
  // `first_line` is the line in which `text` begins.
  std::string decode(const Tokenizer& tokenizer, std::string_view text, int64_t first_line) const {
    const std::string source = input_ == "-" ? "standard input" : input_;
    std::vector<int32_t> ids;
    int64_t line = first_line;
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at != end;) {
      if (is_space(*at)) {
        line += *at++ == '\n' ? 1 : 0;
        continue;
      }
      const char* word_end = at;
      while (word_end != end && !is_space(*word_end)) ++word_end;
      int32_t id = 0;
      const auto result = std::from_chars(at, word_end, id);
      if (result.ec != std::errc() || result.ptr != word_end) {
        fail(ExitCode::kBadData, "{}: line {}: expected a token id, found '{}'", source, line,
             printable(std::string_view(at, static_cast<size_t>(word_end - at))));
      }
      if (id < 0 || id >= tokenizer.vocab_size()) {
        fail(ExitCode::kBadData, "{}: line {}: token id {} is not below the vocabulary size {}", source, line,
             id, tokenizer.vocab_size());
      }
      ids.push_back(id);
      at = word_end;
    }
    return tokenizer.decode(ids, skip_special_tokens_);
  }

  std::string tokenizer_;
  std::string input_ = "-";
  bool skip_special_tokens_ = true;
  bool per_line_ = false;
};

}  // namespace

std::unique_ptr<Command> make_detokenize_command() { return std::make_unique<DetokenizeCommand>(); }

}  // namespace tessera
