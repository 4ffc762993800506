#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/loaded_model.h"
#include "cli/terminal/terminal.h"
#include "cli/text_input.h"
#include "cli/threads.h"
#include "formats/file_kind.h"
#include "model/llama/generator.h"
#include "model/sampling.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

class GenerateCommand : public Command {
 public:
  std::string name() const override { return "generate"; }
  std::string summary() const override { return "Continue a text"; }
  std::string usage() const override { return "--model DIR --prompt TEXT [flags]"; }
  std::string description() const override {
    return "Writes the prompt and its continuation, token by token. Stops at an end-of-text token, after "
           "--max_new_tokens, or when the model runs out of positions. The same seed gives the same text.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera generate --model model --prompt 'Once upon a time' --top_k 40",
            "tessera generate --model model --prompt - --temperature 0 <question.txt"};
  }

  void declare_flags(FlagTable* table) override {
    Flag& model = table->add("model", &model_,
                             "Model folder, with its tokenizer, or its name on the Hugging Face Hub.");
    model.value_name = "DIR";
    model.required = true;
    model.aliases = {"model_name_or_path"};
    Flag& prompt = table->add("prompt", &prompt_, "The text to continue; - reads it from standard input.");
    prompt.required = true;
    limit_flag(table->add("max_new_tokens", &max_new_tokens_, "Maximum number of tokens to generate."), 1);
    limit_flag(table->add("temperature", &sampling_.temperature,
                          "Divides the logits; 0 always picks the likeliest token."),
               0);
    Flag& top_k = table->add("top_k", &sampling_.top_k, "Sample from the K likeliest tokens; 0 means all.");
    top_k.value_name = "K";
    limit_flag(top_k, 0);
    table->add("top_p", &sampling_.top_p,
               "Sample from the likeliest tokens that together reach this probability.");
    table->add("repetition_penalty", &sampling_.repetition_penalty,
               "Values above 1 make tokens that have occurred less likely; their logits are divided or "
               "multiplied by it.");
    limit_flag(table->add("seed", &seed_, "Seed for sampling."), 0);
    table->add("ignore_eos", &ignore_eos_, "Keep generating after an end-of-text token.");
    table->add("echo", &echo_, "Write the prompt as well.");
    declare_dtype_flag(table, &dtype_, {"bfloat16", "float32"}, "Type to compute in.");
    table->add_foreign_names(inference_names());
  }

  void run(FlagTable*) override {
    check_flags();
    ThreadPool pool(threads_for_products());
    const std::string prompt = prompt_ == "-" ? read_input("-") : prompt_;
    check_is_model_folder(model_);
    const Tokenizer tokenizer = Tokenizer::open(model_);
    std::vector<int32_t> ids = tokenizer.encode(prompt, true);
    if (ids.empty())
      fail(ExitCode::kUsage, "--prompt: empty, and the tokenizer has no beginning-of-text token");
    LoadedModel loaded(model_, dtype_of_flag(dtype_), pool, [&](const TrainableModel& model) {
      const int64_t capacity = capacity_for(model.config(), std::ssize(ids));
      return LoadedModel::Use{Generator::memory_bytes(model, capacity),
                              fmt::format("the key-value cache and buffers for {} (--max_new_tokens)",
                                          count_of(capacity, "token"))};
    });
    const ModelConfig& config = loaded.config();
    if (tokenizer.vocab_size() > config.vocab_size) {
      fail(ExitCode::kBadConfig, "{}: the tokenizer has {}, config.json only vocab_size {}", model_,
           count_of(tokenizer.vocab_size(), "token"), config.vocab_size);
    }
    const auto num_prompt = static_cast<int64_t>(ids.size());
    if (num_prompt > config.max_position_embeddings) {
      fail(ExitCode::kBadConfig, "--prompt: {}, but the model has {} (max_position_embeddings)",
           count_of(num_prompt, "token"), count_of(config.max_position_embeddings, "position"));
    }
    if (echo_) write_output(prompt);
    flush_output();
    write_continuation(tokenizer, &loaded, &ids);
  }

 private:
  void check_flags() const {
    if (!(sampling_.top_p > 0 && sampling_.top_p <= 1)) {
      fail(ExitCode::kUsage, "--top_p: expected above 0, at most 1, found {}", sampling_.top_p);
    }
    if (!(sampling_.repetition_penalty > 0)) {
      fail(ExitCode::kUsage, "--repetition_penalty: expected above 0, found {}",
           sampling_.repetition_penalty);
    }
  }

  // Tokens of prompt and continuation.
  int64_t capacity_for(const ModelConfig& config, int64_t num_prompt) const {
    const int64_t positions = config.max_position_embeddings;
    return std::min(num_prompt + std::min(max_new_tokens_, positions), positions);
  }

  void write_continuation(const Tokenizer& tokenizer, LoadedModel* loaded, std::vector<int32_t>* ids) const {
    const ModelConfig& config = loaded->config();
    const auto num_prompt = static_cast<int64_t>(ids->size());
    const int64_t capacity = capacity_for(config, num_prompt);
    std::unordered_set<int64_t> ends(config.eos_token_ids.begin(), config.eos_token_ids.end());
    if (tokenizer.eos_id()) ends.insert(*tokenizer.eos_id());
    if (ignore_eos_) ends.clear();

    Generator generator(loaded->model(), capacity);
    SamplingOptions sampling = sampling_;
    sampling.seed = static_cast<uint64_t>(seed_);
    StreamDecoder decoder(tokenizer);
    std::vector<float> scratch;
    const Stopwatch stopwatch;
    std::span<const float> logits = generator.feed(*ids);
    const double prompt_seconds = stopwatch.seconds();
    int64_t num_new = 0;
    while (num_new < max_new_tokens_) {
      const int32_t id = sample_token(logits, *ids, sampling, static_cast<uint64_t>(num_new), &scratch);
      ids->push_back(id);
      ++num_new;
      if (ends.count(id) != 0) break;
      write_output(decoder.push(id));
      flush_output();
      if (generator.length() == capacity || num_new == max_new_tokens_) break;
      logits = generator.feed(std::span(&ids->back(), 1));
    }
    write_output(decoder.finish());
    write_output("\n");
    flush_output();
    const double seconds = stopwatch.seconds() - prompt_seconds;
    log_info("prompt: {} in {:.2f} s; continuation: {}, {:.1f} tokens/s", count_of(num_prompt, "token"),
             prompt_seconds, count_of(num_new, "token"), static_cast<double>(num_new) / seconds);
    if (num_new < max_new_tokens_ && ends.count(ids->back()) == 0) {
      log_warning("stopped: the model has {} (max_position_embeddings)",
                  count_of(config.max_position_embeddings, "position"));
    }
  }

  std::string model_;
  std::string prompt_;
  int64_t max_new_tokens_ = 256;
  SamplingOptions sampling_;
  int64_t seed_ = 42;
  bool ignore_eos_ = false;
  bool echo_ = true;
  std::string dtype_ = "bfloat16";
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace tessera
