#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/flag_parser.h"
#include "cli/model/model_output.h"
#include "cli/run/rank.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "comm/communicator.h"
#include "formats/huggingface/model_config.h"
#include "io/file.h"
#include "model/families/families.h"
#include "model/initialize.h"
#include "platform/cpu.h"
#include "platform/stop_signal.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"
#include "weights/model_folder.h"
#include "weights/shared_export.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// About a millisecond.
constexpr int64_t kValuesPerTask = int64_t{1} << 16;

class InitCommand : public Command {
 public:
  std::string name() const override { return "init"; }

  bool is_for_ranks() const override { return true; }
  void declare_flags(FlagTable* table) override {
    declare(table, "preset", &preset_).value_name = preset_value_name();
    declare(table, "config", &config_);
    declare(table, "tokenizer", &tokenizer_);
    declare(table, "output", &output_.folder);
    declare(table, "seed", &seed_);
    declare(table, "dtype", &dtype_, kFileDTypeWords);
    declare(table, "num_threads", &num_threads_);
    declare(table, "overwrite", &output_.overwrite);
  }

  void run(FlagTable*) override {
    if (preset_.empty() == config_.empty()) {
      fail(ExitCode::kUsage, "give either --preset NAME or --config FILE{}",
           preset_.empty() ? "" : ", not both");
    }
    const Tokenizer tokenizer = Tokenizer::open(tokenizer_);
    const ModelConfig config = make_config(tokenizer);
    const ParameterLayout layout = parameter_layout(config);
    ExportOptions options;
    options.save_dtype = dtype_;
    options.tokenizer_folder =
        fs::is_directory(tokenizer_) ? fs::path(tokenizer_) : fs::path(tokenizer_).parent_path();
    const World world = detect_world();
    if (world.is_single()) {
      output_.check({});
      write_alone(config, layout, options);
    } else {
      run_as_rank(world, {}, [&](Communicator& comm) { write_together(config, layout, options, comm); });
    }
    if (world.rank > 0) return;
    // Warns if Transformers opens this tokenizer otherwise beside this model.
    Tokenizer::open(output_.folder);
    print("{}: {}, vocabulary {}, {} of width {}, as {}\n", output_.folder,
          format_count(layout.num_parameters(), "parameter"), config.vocab_size,
          format_count(config.num_hidden_layers, "layer"), config.hidden_size,
          dtype_name(options.save_dtype));
  }

 private:
  void write_alone(const ModelConfig& config, const ParameterLayout& layout,
                   const ExportOptions& options) const {
    ThreadPool pool(threads_for_pool(num_threads_));
    StatusLine status;
    export_model_folder(output_.folder, config, layout,
                        weights(config, layout, {0, layout.num_elements()}, pool, &status), options);
    status.clear();
  }

  // Each rank writes one of world_size equal parts.
  void write_together(const ModelConfig& config, const ParameterLayout& layout, const ExportOptions& options,
                      Communicator& comm) const {
    const World& world = comm.world();
    comm.check_same_settings(
        {{"version of tessera", TESSERA_VERSION},
         {"config.json", write_model_config(config, std::string(word_of(kFileDTypeWords, dtype_)))},
         {"seed", fmt::format("{}", seed_)}});
    const PatientScope patient(comm);  // ranks write independently of each other
    // If another rank fails, SIGTERM may arrive before the report of it; handling it lets unfinished files be
    // removed first.
    const StopSignals signals(clear_status_line);
    SharedExport files(output_.folder, config, layout, options);
    uint64_t number = 0;
    if (world.rank == 0) {
      output_.check({});
      number = files.create();
    }
    number = comm.broadcast(number, 0, {"unfinished files"});
    const auto part_begin = [&](int64_t rank) { return layout.num_elements() * rank / world.world_size; };
    const ElementRange part = {part_begin(world.rank), part_begin(world.rank + 1)};
    ThreadPool pool(threads_for_pool(num_threads_));
    StatusLine status;
    files.write(number, {part}, weights(config, layout, part, pool, world.rank == 0 ? &status : nullptr));
    comm.barrier({"weights written"});
    status.clear();
    if (world.rank == 0) files.commit();
    comm.barrier({"model complete"});
  }

  // Reports the progress within `part`.
  WeightSource weights(const ModelConfig& config, const ParameterLayout& layout, ElementRange part,
                       ThreadPool& pool, StatusLine* status) const {
    return [this, &config, &layout, part, &pool, status](int64_t begin, std::span<float> values) {
      pool.parallel_blocks(std::ssize(values), kValuesPerTask, [&](int64_t first, int64_t last) {
        initialize_elements(layout, config, static_cast<uint64_t>(seed_), begin + first,
                            values.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)));
      });
      if (status == nullptr) return;
      status->show("writing weights",
                   static_cast<double>(begin - part.begin) / static_cast<double>(part.end - part.begin));
    };
  }

  ModelConfig make_config(const Tokenizer& tokenizer) const {
    ModelConfig config = preset_.empty() ? read_model_config(config_) : preset_config(preset_);
    if (!preset_.empty()) config.vocab_size = tokenizer.vocab_size();
    if (config.vocab_size < tokenizer.num_model_ids()) {
      fail(ExitCode::kBadConfig, "{}: vocab_size {} is smaller than the tokenizer's {} ({})", config_,
           config.vocab_size, tokenizer.num_model_ids(), tokenizer_);
    }
    // Ids of the configuration belong to another tokenizer, unless this one names no special tokens at all.
    if (tokenizer.named_special_tokens().empty()) return config;
    const std::optional<int32_t> eos = tokenizer.eos_id(), pad = tokenizer.pad_id();
    config.bos_token_id = tokenizer.bos_id();
    config.eos_token_ids.clear();
    if (eos) config.eos_token_ids.push_back(*eos);
    config.pad_token_id = pad && *pad < config.vocab_size ? pad : std::nullopt;
    return config;
  }

  std::string preset_;
  std::string config_;
  std::string tokenizer_;
  ModelOutput output_;
  int64_t seed_ = 42;
  DType dtype_ = DType::kBF16;
  int64_t num_threads_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_init_command() { return std::make_unique<InitCommand>(); }

}  // namespace tessera
