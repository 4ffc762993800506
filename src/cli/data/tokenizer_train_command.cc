#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "platform/thread_pool.h"
#include "tokenizer/training/bpe_trainer.h"

namespace tessera {
namespace {

class TokenizerTrainCommand : public Command {
 public:
  std::string name() const override { return "tokenizer train"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "input", &options_.files);
    declare(table, "output", &output_);
    declare(table, "vocab_size", &options_.vocab_size);
    declare(table, "bos_token", &options_.bos_token);
    declare(table, "eos_token", &options_.eos_token);
    declare(table, "pad_token", &options_.pad_token);
    declare(table, "skip_invalid_utf8", &options_.skip_invalid_utf8);
    declare(table, "overwrite", &overwrite_);
  }

  void run(FlagTable*) override {
    std::error_code ignored;  // writing there says what is wrong
    if (!overwrite_ && std::filesystem::exists(std::filesystem::path(output_) / "tokenizer.json", ignored)) {
      fail(ExitCode::kUsage, "{}: has a tokenizer.json; choose another --output, or give --overwrite",
           output_);
    }
    ThreadPool pool(threads_for_pool());
    StatusLine status;
    const BpeTrainingResult result = train_bpe(
        options_, output_, pool, [&](double fraction) { status.show("training tokenizer", fraction); });
    status.clear();
    print("{}: {} from {} of text\n", output_, format_count(result.vocab_size, "token"),
          format_bytes(result.input_bytes));
    for (const std::string& line : result.left_out) log_warning("{}", line);
    if (result.num_files_skipped > 0) {
      log_warning("left out {} that {} not UTF-8, used {}", format_count(result.num_files_skipped, "file"),
                  result.num_files_skipped == 1 ? "is" : "are", result.num_files);
    }
    if (result.vocab_size < options_.vocab_size) {
      log_warning("vocab_size {} was requested, but the text yields only {}", options_.vocab_size,
                  format_count(result.vocab_size, "token"));
    }
  }

 private:
  BpeTrainingOptions options_;
  std::string output_;
  bool overwrite_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenizer_train_command() { return std::make_unique<TokenizerTrainCommand>(); }

}  // namespace tessera
