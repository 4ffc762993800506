#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_set>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/data/text_input.h"
#include "cli/model/model_command.h"
#include "cli/run/rank.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "formats/byte_order_mark.h"
#include "formats/json.h"
#include "inference/text_generator.h"
#include "io/file.h"

namespace tessera {
namespace {

class GenerateCommand : public ModelCommand {
 public:
  std::string name() const override { return "generate"; }

  bool is_for_ranks() const override { return true; }

  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "prompt", &prompt_);
    declare(table, "prompts", &prompts_);
    declare(table, "max_new_tokens", &max_new_tokens_);
    declare_sampling(table);
    declare(table, "repetition_penalty", &sampling_.repetition_penalty);
    declare(table, "seed", &seed_);
    declare(table, "ignore_eos", &ignore_eos_);
    declare(table, "echo", &echo_);
    declare_model(table);
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
      comm.check_same_settings(settings_of_the_job({{"prompts", prompts_.empty() ? "no" : "yes"},
                                                    {"max_new_tokens", std::to_string(max_new_tokens_)},
                                                    {"temperature", fmt::format("{}", sampling_.temperature)},
                                                    {"seed", std::to_string(seed_)}}));
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
    sampling();  // refuses what makes no sense
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

  // Collective: the ranks of a node share the weights. One prompt is continued by rank 0, several in turn.
  void generate_on(Communicator& comm) {
    const bool is_first = comm.world().rank == 0;
    ThreadPool pool(threads_for_products());
    const ModelFolders parts = folders();
    const Tokenizer tokenizer = Tokenizer::open(parts.tokenizer);
    const std::vector<std::string> prompts =
        prompts_.empty() ? std::vector{prompt_ == "-" ? read_input("-") : prompt_} : read_prompts();
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
    const auto capacity_of = [&](const ModelConfig& config) { return capacity_for(config, longest); };
    LoadedModel loaded = load_for_texts(parts, tokenizer, pool, comm, capacity_of, "max_new_tokens");
    const ModelConfig& config = loaded.config();
    const std::string positions = count_of(config.max_position_embeddings, "position");
    if (longest > config.max_position_embeddings) {
      fail(ExitCode::kBadConfig, "{}: {}, but the model has {} (max_position_embeddings)",
           place_of(prompts, number_of_longest), count_of(longest, "token"), positions);
    }
    const PatientScope patience(comm);
    std::unordered_set<int64_t> ends = loaded.end_ids();
    if (tokenizer.eos_id()) ends.insert(*tokenizer.eos_id());
    if (ignore_eos_) ends.clear();
    TextGenerator generator(tokenizer, loaded.model(), capacity_of(config), sampling(), ends);
    if (!prompts_.empty()) {
      const int64_t num_cut = continue_in_turn(
          generator, ids, max_new_tokens_, comm, [&](size_t number, const std::string& text) {
            const nlohmann::ordered_json line = {{"prompt", prompts[number]}, {"completion", text}};
            print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
            flush_output();
          });
      if (num_cut > 0 && is_first) {
        log_warning("{} of {} stopped: the model has {} (max_position_embeddings)", format_count(num_cut),
                    count_of(std::ssize(prompts), "continuation"), positions);
      }
      return;
    }
    if (is_first) {
      if (echo_) write_result(prompts[0]);
      flush_output();
      write_continuation(ids[0], positions, &generator);
    }
    comm.barrier({"generated text"});
  }

  void write_continuation(const std::vector<int32_t>& prompt, const std::string& positions,
                          TextGenerator* generator) const {
    const Stopwatch stopwatch;
    const Continuation done = generator->continue_text(prompt, max_new_tokens_, [](const std::string& text) {
      write_result(text);
      flush_output();
    });
    write_output("\n");
    flush_output();
    const double seconds = stopwatch.seconds() - done.prompt_s;
    log_info("prompt: {} in {:.2f} s; continuation: {}, {:.1f} tokens/s",
             count_of(std::ssize(prompt), "token"), done.prompt_s, count_of(done.num_tokens, "token"),
             static_cast<double>(done.num_tokens) / seconds);
    if (done.is_full) log_warning("stopped: the model has {} (max_position_embeddings)", positions);
  }

  std::string prompt_;
  bool prompt_given_ = false;
  std::string prompts_;  // a file
  int64_t max_new_tokens_ = 256;
  bool ignore_eos_ = false;
  bool echo_ = true;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace tessera
