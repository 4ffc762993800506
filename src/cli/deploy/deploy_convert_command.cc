#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/data/text_input.h"
#include "cli/deploy/deploy_command.h"
#include "cli/terminal/terminal.h"
#include "cluster/deploy/convert.h"
#include "cluster/deploy/pod_arguments.h"
#include "cluster/manifests/lint.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

class DeployConvertCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy convert"; }

  void declare_flags(FlagTable* table) override {
    declare_training_flags(table, &given_);
    num_training_flags_ = table->flags().size();
    list_only(table, "model dataset config max_length output_dir num_train_epochs max_steps device");
    table->begin_section("Job");
    declare(table, "job", &job_);
    declare(table, "image", &image_);
    declare(table, "runtime", &runtime_);
  }

  void complete_flags(FlagTable* table) override {
    DeployCommand::complete_flags(table);
    read_setting_files(table, &given_);
    given_flags_ = given_of_first(*table, num_training_flags_);
  }

  void run(FlagTable*) override {
    if (given_.model.folder.empty())
      fail(ExitCode::kUsage, "--model is missing: a job needs a model to start from");
    if (given_.data.dataset.empty())
      fail(ExitCode::kUsage, "--dataset is missing: a job needs rows to train on");
    check_pod_paths(given_flags_, /*has_other_volumes=*/runtime_.empty());
    check_fit(given_.placement);
    check_resume(given_.resume);
    Conversion conversion;
    conversion.image = image_.empty() ? default_image(given_.machine.device == DeviceKind::kCuda) : image_;
    conversion.runtime = runtime_;
    conversion.train_arguments = converted_arguments(given_flags_, !runtime_.empty());
    const std::string origin = job_ == "-" ? "standard input" : job_;
    const std::string text = convert_jobs(read_input(job_), origin, conversion);
    // Findings only warn, because the input job may have had them already.
    for (const std::string& finding : lint_manifests(parse_manifests(text, origin)))
      log_warning("{}", finding);
    write_result(text);
  }

 private:
  RunSettings given_;
  size_t num_training_flags_ = 0;
  std::vector<const Flag*> given_flags_;  // of these
  std::string job_;
  std::string image_;
  std::string runtime_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_convert_command() { return std::make_unique<DeployConvertCommand>(); }

}  // namespace tessera
