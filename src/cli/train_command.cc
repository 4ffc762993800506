#include <csignal>

#include "base/log.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "cli/threads.h"
#include "cli/train_report.h"
#include "platform/thread_pool.h"
#include "train/arguments.h"
#include "train/config_file.h"
#include "train/stop_signal.h"
#include "train/trainer.h"

namespace tessera {
namespace {

class TrainCommand : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string summary() const override { return "Train a model on text"; }
  std::string usage() const override { return "--model DIR --dataset FILE... --output_dir DIR [flags]"; }
  std::string description() const override {
    return "Takes a Hugging Face model folder and text, JSONL or pre-tokenized rows, and leaves a Hugging "
           "Face model folder. Names and defaults are those of Hugging Face's TrainingArguments; --config "
           "reads the same names from a JSON or YAML file, flags win.\n"
           "Ctrl-C or SIGTERM ends the run after the present step with a checkpoint; a second Ctrl-C ends it "
           "at once.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera train --model start --dataset 'text/*.txt' --packing \\",
            "    --max_length 512 --learning_rate 1e-3 --max_steps 600 --output_dir model",
            "tessera train --config run.yaml --learning_rate 2e-5"};
  }

  void declare_flags(FlagTable* table) override { declare_training_flags(table, &args_); }

  void complete_flags(FlagTable* table) override {
    if (!args_.config.empty()) apply_config_file(args_.config, table);
  }

  void run(FlagTable* table) override {
    set_log_level(args_.lowest_log_level());
    resolve_training_arguments(*table, /*world_size=*/1, &args_);
    set_closed_output(ClosedOutput::kIsIgnored);
    TerminalReport report(!args_.disable_tqdm);
    ThreadPool pool(threads_for_pool(args_.num_threads));
    Trainer trainer(args_, pool, report);
    int stop_signal = 0;
    {
      const StopSignals signals(clear_status_line);
      stop_signal = trainer.run([&] { return signals.received(); }).stop_signal;
    }
    // Everything is saved. Ending by the signal itself tells a shell script to stop, too.
    if (stop_signal != 0) std::raise(stop_signal);
  }

 private:
  TrainingArguments args_;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace tessera
