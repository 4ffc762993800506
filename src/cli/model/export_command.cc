#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/model/model_command.h"
#include "cli/model/model_output.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/chat/modelfile.h"
#include "formats/file_kind.h"
#include "formats/huggingface/model_card.h"
#include "io/file.h"
#include "settings/choices.h"
#include "settings/compat/compat_flags.h"
#include "tokenizer/gguf_vocabulary.h"
#include "weights/export_gguf.h"
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
    declare(table, "output", &output_.folder);
    declare(table, "overwrite", &output_.overwrite);
    declare(table, "adapter", &output_.adapters);
    declare(table, "type", &type_, kGgufTypes);
    declare(table, "model_name", &model_name_);
    declare(table, "dtype", &output_.dtype, kSavedDTypeWords);
    declare_size(table, "max_shard_size", &output_.max_shard_bytes, "2GB");
    table->add_foreign_names(compat_hints("inference_hints"));
  }

  void run(FlagTable* table) override {
    check_flags(*table);
    check_is_model_folder(model_);
    const std::string folder = model_;
    output_.adapters = adapter_folders(output_.adapters);
    if (is_adapter_folder(model_)) {
      output_.adapters.insert(output_.adapters.begin(), model_);
      model_ = base_model_of(model_);
    }
    if (model_name_.empty()) model_name_ = gguf_name_of(folder);
    output_.check({model_});
    if (format_ != ExportFormat::kFolder) return write_gguf();
    const DType dtype = output_.write({model_}, {.weights = {1.0}});
    print("{}: weights as {}\n", output_.folder, dtype_name(dtype));
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

  void write_gguf() const {
    std::error_code error;
    const fs::path output = output_.folder;
    const bool writes_folder = format_ == ExportFormat::kOllama && output.extension() != ".gguf";
    if (!writes_folder && (fs::is_directory(output, error) || !output.has_filename()))
      fail(ExitCode::kUsage, "--output {}: is a folder; name the file to write in it", output_.folder);
    const fs::path gguf = writes_folder ? output / "model.gguf" : output;
    const fs::path modelfile = gguf.parent_path() / "Modelfile";
    if (format_ == ExportFormat::kOllama) output_.check(modelfile.native(), {model_});
    const ModelConfig config = read_model_config(model_);
    StatusLine status;
    GgufExportOptions options = {.type = type_};
    options.adapters.assign(output_.adapters.begin(), output_.adapters.end());
    const fs::path tokenizer = tokenizer_source(model_, options.adapters);
    std::vector<int64_t> ends =
        generation_end_ids(generation_config_source(model_, options.adapters).parent_path());
    ends.insert(ends.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
    options.fields = gguf_vocabulary(tokenizer, config, ends);
    options.fields.push_back({"general.name", GgufScalar(model_name_)});
    if (const std::string license = license_of(model_); !license.empty())
      options.fields.push_back({"general.license", GgufScalar(license)});
    options.progress = [&](const LoadProgress& progress) {
      status.show("writing " + gguf.native(), progress.fraction(), progress.bytes_per_second());
    };
    if (writes_folder) create_folder(output);
    ThreadPool pool(threads_for_pool(0));
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

  std::string model_;
  ExportFormat format_ = ExportFormat::kGguf;
  ModelOutput output_;
  GgmlType type_ = GgmlType::kBF16;
  std::string model_name_;
};

}  // namespace

std::unique_ptr<Command> make_export_command() { return std::make_unique<ExportCommand>(); }

}  // namespace tessera
