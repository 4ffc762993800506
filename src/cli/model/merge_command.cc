#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/model/adapter_folders.h"
#include "cli/model/loaded_model.h"
#include "cli/model/output_folder.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "formats/file_kind.h"
#include "settings/choices.h"
#include "tokenizer/tokenizer.h"
#include "weights/merge_models.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The tokenizer beside a model, if there is one.
std::optional<Tokenizer> tokenizer_of(const fs::path& model) {
  std::error_code error;
  if (!fs::exists(model / "tokenizer.json", error)) return std::nullopt;
  return Tokenizer::open(model);
}

// Files that are written differently may hold the same tokens, which is what the weights depend on.
void check_same_tokens(const Tokenizer& first, const std::string& first_model, const Tokenizer& other,
                       const std::string& model) {
  if (first.fingerprint() == other.fingerprint()) return;
  const auto token = [](const Tokenizer& tokenizer, int64_t id) {
    return id < tokenizer.vocab_size() ? tokenizer.id_to_token(static_cast<int32_t>(id)) : std::string();
  };
  for (int64_t id = 0; id < std::max(first.vocab_size(), other.vocab_size()); ++id) {
    const std::string a = token(first, id), b = token(other, id);
    if (a == b) continue;
    fail(ExitCode::kBadConfig,
         "{}: token {}: expected \"{}\" as in {}, found \"{}\": only models with the same tokenizer can be "
         "merged",
         model, id, printable(a), first_model, printable(b));
  }
}

constexpr Word<MergeMethod> kMethods[] = {{"linear", MergeMethod::kLinear}, {"slerp", MergeMethod::kSlerp}};

class MergeCommand : public Command {
 public:
  std::string name() const override { return "merge"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "models", &models_);
    declare(table, "adapter", &adapters_);
    declare(table, "method", &method_, kMethods);
    declare(table, "weights", &weights_);
    declare(table, "t", &t_);
    declare(table, "output", &output_);
    declare(table, "overwrite", &overwrite_);
    declare(table, "dtype", &dtype_, kSavedDTypeWords);
    declare_size(table, "max_shard_size", &max_shard_bytes_, "2GB");
  }

  void run(FlagTable* table) override {
    add_base_model();
    check_flags(*table);
    MergeOptions options;
    options.method = method_;
    options.weights = weights();
    options.t = t_;
    options.adapters.assign(adapters_.begin(), adapters_.end());
    check_models();
    options.save_dtype = dtype_ ? *dtype_ : weights_dtype(models_.front());
    options.max_shard_bytes = max_shard_bytes_.value_or(options.max_shard_bytes);
    StatusLine status;
    options.progress = [&](double fraction) {
      status.show(fmt::format("writing {}: {:.0f} %", output_, 100 * fraction));
    };
    ThreadPool pool(threads_for_pool(0));
    merge_models({models_.begin(), models_.end()}, options, output_, pool);
    status.clear();
    print("{}: {}{}, weights as {}\n", output_, count_of(std::ssize(models_), "model"),
          adapters_.empty() ? "" : " with " + count_of(std::ssize(adapters_), "adapter"),
          dtype_name(options.save_dtype));
  }

 private:
  void add_base_model() {
    adapters_ = adapter_folders(adapters_);
    if (models_.empty() && !adapters_.empty()) models_.push_back(base_model_of(adapters_.front()));
  }

  void check_flags(const FlagTable& table) const {
    const bool is_slerp = method_ == MergeMethod::kSlerp;
    if (models_.size() + adapters_.size() < 2) {
      fail(ExitCode::kUsage, "--models: expected at least two folders, found {}", models_.size());
    }
    if (is_slerp && models_.size() != 2)
      fail(ExitCode::kUsage, "--models: expected two folders for --method slerp, found {}", models_.size());
    for (const char* name : {"weights", "t"}) {
      if (table.is_set(name) && is_slerp == (name == std::string_view("weights")))
        fail(ExitCode::kUsage, "--{}: not for --method {}", name, word_of(kMethods, method_));
    }
  }

  std::vector<double> weights() const {
    std::vector<double> values;
    for (const std::string& text : weights_) {
      char* end = nullptr;
      const double value = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0' || !std::isfinite(value))
        fail(ExitCode::kUsage, "--weights: expected numbers, found '{}'", printable(text));
      values.push_back(value);
    }
    if (values.empty()) values.assign(models_.size(), 1.0);
    if (values.size() != models_.size()) {
      fail(ExitCode::kUsage, "--weights: expected one per model, {}, found {}", models_.size(),
           values.size());
    }
    if (!(std::accumulate(values.begin(), values.end(), 0.0) > 0))
      fail(ExitCode::kUsage, "--weights: expected a sum above 0, found {}", fmt::join(weights_, " "));
    return values;
  }

  void check_models() const {
    for (const std::string& model : models_) {
      check_is_model_folder(model);
      check_output(output_, overwrite_, model);
    }
    for (const std::string& adapter : adapters_) check_output(output_, overwrite_, adapter);
    const std::optional<Tokenizer> first = tokenizer_of(models_.front());
    for (size_t i = 1; first && i < models_.size(); ++i) {
      const std::optional<Tokenizer> other = tokenizer_of(models_[i]);
      if (other) check_same_tokens(*first, models_.front(), *other, models_[i]);
    }
  }

  std::vector<std::string> models_;
  std::vector<std::string> adapters_;
  MergeMethod method_ = MergeMethod::kLinear;
  std::vector<std::string> weights_;
  double t_ = 0.5;
  std::string output_;
  bool overwrite_ = false;
  std::optional<DType> dtype_;
  std::optional<int64_t> max_shard_bytes_ = 5'000'000'000;
};

}  // namespace

std::unique_ptr<Command> make_merge_command() { return std::make_unique<MergeCommand>(); }

}  // namespace tessera
