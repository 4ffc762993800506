#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/model/model_command.h"
#include "cli/model/model_output.h"
#include "cli/terminal/terminal.h"
#include "formats/file_kind.h"
#include "settings/choices.h"
#include "tokenizer/same_tokens.h"

namespace tessera {
namespace {

constexpr Word<MergeMethod> kMethods[] = {{"linear", MergeMethod::kLinear}, {"slerp", MergeMethod::kSlerp}};

class MergeCommand : public Command {
 public:
  std::string name() const override { return "merge"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "models", &models_);
    declare(table, "adapter", &output_.adapters);
    declare(table, "method", &method_, kMethods);
    declare(table, "weights", &weights_);
    declare(table, "t", &t_);
    declare(table, "output", &output_.folder);
    declare(table, "overwrite", &output_.overwrite);
    declare(table, "dtype", &output_.dtype, kSavedDTypeWords);
    declare_size(table, "max_shard_size", &output_.max_shard_bytes, "2GB");
  }

  void run(FlagTable* table) override {
    output_.adapters = adapter_folders(output_.adapters);
    if (models_.empty() && !output_.adapters.empty())
      models_.push_back(base_model_of(output_.adapters.front()));
    check_flags(*table);
    MergeOptions options;
    options.method = method_;
    options.weights = weights();
    options.t = t_;
    for (const std::string& model : models_) check_is_model_folder(model);
    output_.check(models_);
    check_same_tokens(models_);
    const DType dtype = output_.write(models_, options);
    const int64_t num_adapters = std::ssize(output_.adapters);
    print("{}: {}{}, weights as {}\n", output_.folder, count_of(std::ssize(models_), "model"),
          num_adapters == 0 ? "" : " with " + count_of(num_adapters, "adapter"), dtype_name(dtype));
  }

 private:
  void check_flags(const FlagTable& table) const {
    const bool is_slerp = method_ == MergeMethod::kSlerp;
    if (models_.size() + output_.adapters.size() < 2) {
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

  std::vector<std::string> models_;
  MergeMethod method_ = MergeMethod::kLinear;
  std::vector<std::string> weights_;
  double t_ = 0.5;
  ModelOutput output_;
};

}  // namespace

std::unique_ptr<Command> make_merge_command() { return std::make_unique<MergeCommand>(); }

}  // namespace tessera
