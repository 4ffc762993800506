#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <unordered_set>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/text_input.h"
#include "cli/model/adapter_folders.h"
#include "cli/model/loaded_model.h"
#include "cli/run/rank.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "formats/byte_order_mark.h"
#include "formats/file_kind.h"
#include "formats/json.h"
#include "io/file.h"
#include "model/llama/generator.h"
#include "model/sampling.h"
#include "settings/choices.h"
#include "settings/compat/compat_flags.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

class GenerateCommand : public Command {
 public:
  std::string name() const override { return "generate"; }

  bool is_for_ranks() const override { return true; }

  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "prompt", &prompt_);
    declare(table, "prompts", &prompts_);
    declare(table, "max_new_tokens", &max_new_tokens_);
    declare(table, "temperature", &sampling_.temperature);
    declare(table, "top_k", &sampling_.top_k);
    declare(table, "top_p", &sampling_.top_p);
    declare(table, "repetition_penalty", &sampling_.repetition_penalty);
    declare(table, "seed", &seed_);
    declare(table, "ignore_eos", &ignore_eos_);
    declare(table, "echo", &echo_);
    declare(table, "adapter", &adapter_);
    declare(table, "dtype", &dtype_, kTrainingDTypeWords);
    declare(table, "device", &device_);
    table->add_foreign_names(compat_hints("inference_hints"));
  }

  void run(FlagTable* table) override {
    prompt_given_ = table->is_set("prompt");
    check_flags();
    const std::optional<World> world = launched_world();
    if (!world) {
      generate_on(single_process());
      return;
    }
    if (prompt_ == "-") {
      fail(ExitCode::kUsage,
           "--prompt -: ranks have no standard input; put the prompt into a --prompts file");
    }
    run_as_rank(*world, {}, [&](Communicator& comm) {
      comm.check_same_settings({{"version of tessera", TESSERA_VERSION},
                                {"prompts", prompts_.empty() ? "no" : "yes"},
                                {"dtype", std::string(word_of(kTrainingDTypeWords, dtype_))},
                                {"device", std::string(word_of(device_))},
                                {"max_new_tokens", std::to_string(max_new_tokens_)},
                                {"temperature", fmt::format("{}", sampling_.temperature)},
                                {"seed", std::to_string(seed_)}});
      generate_on(comm);
    });
  }

 private:
  void check_flags() const {
    if (prompt_given_ == !prompts_.empty()) {
      fail(ExitCode::kUsage, "{}",
           prompt_given_ ? "--prompt and --prompts: give one of them"
                         : "missing --prompt TEXT or --prompts FILE; see --help");
    }
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

  // Lines of a file; in a .jsonl file the field "prompt" of each.
  std::vector<std::string> read_prompts() const {
    std::vector<std::string> prompts;
    const std::string text = read_text_file(prompts_);
    std::istringstream lines(text.substr(text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0));
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      const std::string where = fmt::format("{}:{}", prompts_, number);
      if (prompts_.ends_with(".jsonl")) {
        const Json json = parse_json(line, where);
        line = JsonNode(json, where)["prompt"].string();
      } else if (!is_valid_utf8(line)) {
        fail(ExitCode::kBadData, "{}: expected UTF-8, found other bytes", where);
      }
      prompts.push_back(line);
    }
    if (prompts.empty())
      fail(ExitCode::kBadData, "{}: expected a prompt on every line, found none", prompts_);
    return prompts;
  }

  // Where a prompt comes from, for errors.
  std::string place_of(const std::vector<std::string>& prompts, size_t number) const {
    constexpr int64_t kMaxChars = 40;
    if (prompts_.empty()) return "--prompt";
    return fmt::format("{}: prompt {} ('{}')", prompts_, number + 1, printable(prompts[number], kMaxChars));
  }

  // The same text on every rank: that of `root`, of any length.
  static std::string text_of_rank(std::string text, int root, Communicator& comm) {
    const OpLabel label = {"generated text"};
    text.resize(comm.broadcast(text.size(), root, label));
    comm.broadcast_bytes(std::as_writable_bytes(std::span(text)), root, label);
    return text;
  }

  // Collective: the ranks of a node share the weights. One prompt is continued by rank 0, several in turn.
  void generate_on(Communicator& comm) {
    const bool is_first = comm.world().rank == 0;
    ThreadPool pool(threads_for_products());
    check_is_model_folder(model_);
    const Tokenizer tokenizer = Tokenizer::open(tokenizer_folder_of(model_, adapter_));
    std::vector<std::string> prompts;
    if (prompts_.empty()) {
      prompts = {prompt_ == "-" ? read_input("-") : prompt_};
    } else {
      prompts = read_prompts();
    }
    std::vector<std::vector<int32_t>> ids;
    int64_t longest = 0;
    size_t number_of_longest = 0;
    for (const std::string& prompt : prompts) {
      ids.push_back(tokenizer.encode(prompt, true));
      if (ids.back().empty()) {
        fail(ExitCode::kUsage, "{}: empty, and the tokenizer has no beginning-of-text token",
             place_of(prompts, ids.size() - 1));
      }
      if (std::ssize(ids.back()) <= longest) continue;
      longest = std::ssize(ids.back());
      number_of_longest = ids.size() - 1;
    }
    LoadedModel loaded(
        model_, adapter_, dtype_, ops_of_flag(device_), pool,
        [&](const TrainableModel& model) {
          const int64_t capacity = capacity_for(model.config(), longest);
          return LoadedModel::Use{Generator::memory_bytes(model, capacity),
                                  fmt::format("the key-value cache and buffers for {} (--max_new_tokens)",
                                              count_of(capacity, "token"))};
        },
        comm);
    const ModelConfig& config = loaded.config();
    check_vocabulary(tokenizer, config, model_);
    if (longest > config.max_position_embeddings) {
      fail(ExitCode::kBadConfig, "{}: {}, but the model has {} (max_position_embeddings)",
           place_of(prompts, number_of_longest), count_of(longest, "token"),
           count_of(config.max_position_embeddings, "position"));
    }
    const PatientScope patience(comm);
    if (!prompts_.empty()) {
      continue_in_turn(tokenizer, loaded, prompts, ids, longest, comm);
      return;
    }
    if (is_first) {
      if (echo_) write_result(prompts[0]);
      flush_output();
      write_continuation(tokenizer, loaded, ids[0]);
    }
    comm.barrier({"generated text"});
  }

  struct Generated {
    int64_t num_tokens = 0;
    double prompt_s = 0;
    bool ran_out_of_positions = false;
  };

  // Prompts are dealt to the ranks in turn; rank 0 prints all continuations in order, a JSON object each.
  void continue_in_turn(const Tokenizer& tokenizer, LoadedModel& loaded,
                        const std::vector<std::string>& prompts, const std::vector<std::vector<int32_t>>& ids,
                        int64_t longest, Communicator& comm) const {
    Generator generator(loaded.model(), capacity_for(loaded.config(), longest));
    const auto world_size = static_cast<size_t>(comm.world().world_size);
    const auto rank = static_cast<size_t>(comm.world().rank);
    int64_t num_cut = 0;
    for (size_t first = 0; first < prompts.size(); first += world_size) {
      std::string own;
      if (first + rank < prompts.size()) {
        generator.reset();
        std::vector<int32_t> tokens = ids[first + rank];
        const Generated done =
            generate(tokenizer, loaded, generator, &tokens, [&own](const std::string& text) { own += text; });
        if (done.ran_out_of_positions) ++num_cut;
      }
      const size_t last = std::min(first + world_size, prompts.size());
      for (size_t number = first; number < last; ++number) {
        const std::string text = text_of_rank(own, static_cast<int>(number - first), comm);
        if (rank != 0) continue;
        const nlohmann::ordered_json line = {{"prompt", prompts[number]}, {"completion", text}};
        print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
        flush_output();
      }
    }
    num_cut = comm.sum(num_cut, {"generated text"});
    if (num_cut > 0 && rank == 0) {
      log_warning("{} of {} stopped: the model has {} (max_position_embeddings)", format_count(num_cut),
                  count_of(std::ssize(prompts), "continuation"),
                  count_of(loaded.config().max_position_embeddings, "position"));
    }
  }
  // Appends to `ids`, which are the prompt's; `show` receives the text piece by piece.
  Generated generate(const Tokenizer& tokenizer, const LoadedModel& loaded, Generator& generator,
                     std::vector<int32_t>* ids, const std::function<void(const std::string&)>& show) const {
    const int64_t capacity = capacity_for(loaded.config(), std::ssize(*ids));
    std::unordered_set<int64_t> ends = loaded.end_ids();
    if (tokenizer.eos_id()) ends.insert(*tokenizer.eos_id());
    if (ignore_eos_) ends.clear();

    SamplingOptions sampling = sampling_;
    sampling.seed = static_cast<uint64_t>(seed_);
    StreamDecoder decoder(tokenizer);
    std::vector<float> scratch;
    Generated done;
    const Stopwatch stopwatch;
    std::span<const float> logits = generator.feed(*ids);
    done.prompt_s = stopwatch.seconds();
    while (done.num_tokens < max_new_tokens_) {
      const int32_t id =
          sample_token(logits, *ids, sampling, static_cast<uint64_t>(done.num_tokens), &scratch);
      ids->push_back(id);
      ++done.num_tokens;
      if (ends.count(id) != 0) break;
      show(decoder.push(id));
      done.ran_out_of_positions = generator.length() == capacity && done.num_tokens < max_new_tokens_;
      if (generator.length() == capacity || done.num_tokens == max_new_tokens_) break;
      logits = generator.feed(std::span(&ids->back(), 1));
    }
    show(decoder.finish());
    return done;
  }

  void write_continuation(const Tokenizer& tokenizer, LoadedModel& loaded, std::vector<int32_t> ids) const {
    const ModelConfig& config = loaded.config();
    const auto num_prompt = static_cast<int64_t>(ids.size());
    Generator generator(loaded.model(), capacity_for(config, num_prompt));
    const Stopwatch stopwatch;
    const Generated done = generate(tokenizer, loaded, generator, &ids, [](const std::string& text) {
      write_result(text);
      flush_output();
    });
    write_output("\n");
    flush_output();
    const double seconds = stopwatch.seconds() - done.prompt_s;
    log_info("prompt: {} in {:.2f} s; continuation: {}, {:.1f} tokens/s", count_of(num_prompt, "token"),
             done.prompt_s, count_of(done.num_tokens, "token"),
             static_cast<double>(done.num_tokens) / seconds);
    if (done.ran_out_of_positions) {
      log_warning("stopped: the model has {} (max_position_embeddings)",
                  count_of(config.max_position_embeddings, "position"));
    }
  }

  std::string model_;
  std::string adapter_;
  std::string prompt_;
  bool prompt_given_ = false;
  std::string prompts_;  // a file
  int64_t max_new_tokens_ = 256;
  SamplingOptions sampling_;
  int64_t seed_ = 42;
  bool ignore_eos_ = false;
  bool echo_ = true;
  DType dtype_ = DType::kBF16;
  DeviceKind device_ = DeviceKind::kCpu;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace tessera
