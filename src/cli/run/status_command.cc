#include <string>

#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "cluster/jobs/job_report.h"

namespace tessera {
namespace {

class StatusCommand : public Command {
 public:
  std::string name() const override { return "status"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "job", &job_);
    declare(table, "namespace", &name_space_);
    declare(table, "json", &as_json_);
  }

  void run(FlagTable*) override {
    const JobObjects job = get_job(Kubectl(process_environment()), job_asked_for(job_, name_space_));
    const Diagnosis found = diagnose(job);
    write_output(as_json_ ? job_json(job, found) : job_text(job, found));
    flush_output();
    if (found.outlook != Outlook::kGood) throw ResultCode{static_cast<int>(found.outlook)};
  }

 private:
  std::string job_;
  std::string name_space_;
  bool as_json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_status_command() { return std::make_unique<StatusCommand>(); }

}  // namespace tessera
