#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/model/adapter_folders.h"
#include "cli/model/loaded_model.h"
#include "cli/model/model_card.h"
#include "cli/model/modelfile.h"
#include "cli/model/output_folder.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "formats/file_kind.h"
#include "formats/huggingface/model_config.h"
#include "io/file.h"
#include "settings/choices.h"
#include "settings/compat/compat_flags.h"
#include "tokenizer/gguf_vocabulary.h"
#include "weights/export_gguf.h"
#include "weights/merge_models.h"
#include "weights/merged_adapters.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

enum class ExportFormat { kGguf, kOllama, kFolder };
constexpr Word<ExportFormat> kFormats[] = {
    {"gguf", ExportFormat::kGguf}, {"ollama", ExportFormat::kOllama}, {"hf", ExportFormat::kFolder}};
constexpr Word<GgmlType> kGgufTypes[] = {
    {"bf16", GgmlType::kBF16}, {"f16", GgmlType::kF16}, {"f32", GgmlType::kF32}, {"q8_0", GgmlType::kQ8_0}};

class ExportCommand : public Command {
 public:
  std::string name() const override { return "export"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "model", &model_);
    declare(table, "format", &format_, kFormats);
    declare(table, "output", &output_);
    declare(table, "overwrite", &overwrite_);
    declare(table, "adapter", &adapters_);
    declare(table, "type", &type_, kGgufTypes);
    declare(table, "model_name", &model_name_);
    declare(table, "dtype", &dtype_, kSavedDTypeWords);
    declare_size(table, "max_shard_size", &max_shard_bytes_, "2GB");
    table->add_foreign_names(compat_hints("inference_hints"));
  }

  void run(FlagTable* table) override {
    check_flags(*table);
    check_is_model_folder(model_);
    const std::string folder = model_;
    adapters_ = adapter_folders(adapters_);
    if (is_adapter_folder(model_)) {
      adapters_.insert(adapters_.begin(), model_);
      model_ = base_model_of(model_);
    }
    if (model_name_.empty()) model_name_ = gguf_name_of(folder);
    check_output(output_, overwrite_, model_);
    for (const std::string& adapter : adapters_) check_output(output_, overwrite_, adapter);
    ThreadPool pool(threads_for_pool(0));
    if (format_ != ExportFormat::kFolder) {
      write_gguf(pool);
    } else {
      write_folder(pool);
    }
  }

 private:
  void check_flags(const FlagTable& table) const {
    const bool is_gguf = format_ != ExportFormat::kFolder;
    const auto refuse = [&](std::initializer_list<const char*> names) {
      for (const char* name : names) {
        if (table.is_set(name))
          fail(ExitCode::kUsage, "--{}: not for --format {}", name, word_of(kFormats, format_));
      }
    };
    if (is_gguf) {
      refuse({"dtype", "max_shard_size"});
    } else {
      refuse({"type", "model_name"});
    }
  }

  void write_gguf(ThreadPool& pool) const {
    std::error_code error;
    const fs::path output = output_;
    const bool writes_folder = format_ == ExportFormat::kOllama && output.extension() != ".gguf";
    if (!writes_folder && (fs::is_directory(output, error) || !output.has_filename()))
      fail(ExitCode::kUsage, "--output {}: is a folder; name the file to write in it", output_);
    const fs::path gguf = writes_folder ? output / "model.gguf" : output;
    const fs::path modelfile = gguf.parent_path() / "Modelfile";
    if (format_ == ExportFormat::kOllama) check_output(modelfile.native(), overwrite_, model_);
    const ModelConfig config = read_model_config(model_);
    StatusLine status;
    GgufExportOptions options = {.type = type_};
    options.adapters.assign(adapters_.begin(), adapters_.end());
    const fs::path tokenizer = tokenizer_source(model_, options.adapters);
    std::vector<int64_t> ends =
        generation_end_ids(generation_config_source(model_, options.adapters).parent_path());
    ends.insert(ends.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
    options.fields = gguf_vocabulary(tokenizer, config, ends);
    options.fields.push_back({"general.name", GgufScalar(model_name_)});
    if (const std::string license = license_of(model_); !license.empty())
      options.fields.push_back({"general.license", GgufScalar(license)});
    options.progress = [&](const LoadProgress& progress) {
      status.show(fmt::format("writing {}: {:.0f} % {:.1f} GB/s", gguf.native(), 100 * progress.fraction(),
                              progress.bytes_per_second() * 1e-9));
    };
    if (writes_folder) create_folder(output);
    export_gguf(model_, config, options, gguf, pool);
    status.clear();
    print("{}: {} as {}\n", gguf.native(), format_bytes(static_cast<int64_t>(fs::file_size(gguf, error))),
          word_of(kGgufTypes, type_));
    if (format_ != ExportFormat::kOllama) return;
    const Modelfile written =
        ollama_modelfile(gguf.filename().native(), tokenizer, Tokenizer::open(tokenizer), ends);
    write_text_file(modelfile, written.text);
    if (!written.warning.empty()) log_warning("{}: {}", modelfile.native(), written.warning);
    print("{}: ollama create NAME -f {}\n", modelfile.native(), modelfile.native());
  }

  void write_folder(ThreadPool& pool) const {
    StatusLine status;
    MergeOptions options = {.weights = {1.0}};
    options.save_dtype = dtype_ ? *dtype_ : weights_dtype(model_);
    options.max_shard_bytes = max_shard_bytes_.value_or(options.max_shard_bytes);
    options.adapters.assign(adapters_.begin(), adapters_.end());
    options.progress = [&](double fraction) {
      status.show(fmt::format("writing {}: {:.0f} %", output_, 100 * fraction));
    };
    merge_models({model_}, options, output_, pool);
    status.clear();
    print("{}: weights as {}\n", output_, dtype_name(options.save_dtype));
  }

  std::string model_;
  std::vector<std::string> adapters_;
  ExportFormat format_ = ExportFormat::kGguf;
  std::string output_;
  bool overwrite_ = false;
  GgmlType type_ = GgmlType::kBF16;
  std::string model_name_;
  std::optional<DType> dtype_;
  std::optional<int64_t> max_shard_bytes_ = 5'000'000'000;
};

}  // namespace

std::unique_ptr<Command> make_export_command() { return std::make_unique<ExportCommand>(); }

}  // namespace tessera
