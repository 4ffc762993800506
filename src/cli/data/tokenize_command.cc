#include <algorithm>

#include "base/error.h"
#include "cli/command.h"
#include "cli/data/text_input.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

// Lines worked on before their ids are written: bounds the memory.
constexpr int64_t kLinesPerPiece = 1 << 16;
constexpr int64_t kLinesPerTask = 256;

class TokenizeCommand : public Command {
 public:
  std::string name() const override { return "tokenize"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "tokenizer", &tokenizer_);
    declare(table, "input", &input_);
    declare(table, "add_special_tokens", &add_special_tokens_);
    declare(table, "per_line", &per_line_);
  }

  void run(FlagTable*) override {
    const Tokenizer tokenizer = Tokenizer::open(tokenizer_);
    const std::string text = read_input(input_);
    try {
      if (per_line_) {
        tokenize_lines(tokenizer, split_lines(text));
      } else {
        write_output(ids_line(tokenizer, text));
      }
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadData) throw;
      fail(ExitCode::kBadData, "{}: {}", input_ == "-" ? "standard input" : input_, error.what());
    }
  }

 private:
  std::string ids_line(const Tokenizer& tokenizer, std::string_view text) const {
    std::vector<int32_t> ids;
    tokenizer.encode(text, add_special_tokens_, &ids);
    return fmt::format("{}\n", fmt::join(ids, " "));
  }

  void tokenize_lines(const Tokenizer& tokenizer, const std::vector<std::string_view>& lines) const {
    ThreadPool pool(threads_for_pool());
    const auto num_lines = static_cast<int64_t>(lines.size());
    std::vector<std::string> results;
    for (int64_t begin = 0; begin < num_lines; begin += kLinesPerPiece) {
      results.resize(static_cast<size_t>(std::min(kLinesPerPiece, num_lines - begin)));
      pool.parallel_blocks(static_cast<int64_t>(results.size()), kLinesPerTask,
                           [&](int64_t first, int64_t last) {
                             for (int64_t i = first; i < last; ++i)
                               results[static_cast<size_t>(i)] = line_result(tokenizer, lines, begin + i);
                           });
      for (const std::string& result : results) write_output(result);
    }
  }

  std::string line_result(const Tokenizer& tokenizer, const std::vector<std::string_view>& lines,
                          int64_t index) const {
    try {
      return ids_line(tokenizer, lines[static_cast<size_t>(index)]);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("line {}: {}", index + 1, error.what()));
    }
  }

  std::string tokenizer_;
  std::string input_ = "-";
  bool add_special_tokens_ = true;
  bool per_line_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize_command() { return std::make_unique<TokenizeCommand>(); }

}  // namespace tessera
