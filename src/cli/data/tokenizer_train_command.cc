#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "platform/thread_pool.h"
#include "tokenizer/training/bpe_trainer.h"

namespace tessera {
namespace {

class TokenizerTrainCommand : public Command {
 public:
  std::string name() const override { return "tokenizer train"; }

  void declare_flags(FlagTable* table) override {
    table
        ->add("input", &options_.files,
              "Text files (UTF-8), folders or globs, given as for `train --dataset`.")
        .required = true;
    Flag& output = table->add("output", &output_, "Folder to write.");
    output.value_name = "DIR";
    output.required = true;
    table->add("vocab_size", &options_.vocab_size, "Vocabulary size, including special tokens.");
    table->add("bos_token", &options_.bos_token, "Special token that begins a document.");
    table->add("eos_token", &options_.eos_token, "Special token that ends a document.");
    table->add("pad_token", &options_.pad_token,
               "Special token that programs fill up rows with; none unless given. Tessera pads nothing, but "
               "Hugging Face's collators take the eos token for it otherwise, and then mask it in labels.");
    table->add("skip_invalid_utf8", &options_.skip_invalid_utf8,
               "Skip files that are not valid UTF-8, and count them. Otherwise the first one ends the run.");
    table->add("overwrite", &overwrite_, "Replace an existing tokenizer in the folder.");
  }

  void run(FlagTable*) override {
    std::error_code ignored;  // writing there says what is wrong
    if (!overwrite_ && std::filesystem::exists(std::filesystem::path(output_) / "tokenizer.json", ignored)) {
      fail(ExitCode::kUsage, "{}: has a tokenizer.json; choose another --output, or give --overwrite",
           output_);
    }
    ThreadPool pool(threads_for_pool());
    StatusLine status;
    const BpeTrainingResult result = train_bpe(options_, output_, pool, [&](double fraction) {
      status.show(fmt::format("training tokenizer: {:.0f} %", 100 * fraction));
    });
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
