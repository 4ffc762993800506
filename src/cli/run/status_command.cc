#include <string>

#include "cli/command.h"
#include "cli/terminal/terminal.h"
#include "cluster/jobs/job_report.h"

namespace tessera {
namespace {

class StatusCommand : public Command {
 public:
  std::string name() const override { return "status"; }
  std::string summary() const override {
    return "Tell what a job in Kubernetes is doing, or what holds it up";
  }
  std::string usage() const override { return "JOB.yaml | NAME [flags]"; }
  std::string description() const override {
    return "Asks the cluster through kubectl (that of $KUBECTL, or in PATH, with its current context) about "
           "a TrainJob, a JobSet or a Job and all that belongs to it, and says in a few lines whether it "
           "is waiting for quota, nodes, its image or a volume, why it failed, or how far it is.\n"
           "Exit codes: 0 it runs or has finished; 1 it is waiting for something the cluster does by itself; "
           "2 "
           "it waits until somebody changes something; 3 it failed for good. 66 there is no such job, 74 the "
           "cluster cannot be reached, 78 kubectl is not logged in or may not see the job.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera status job.yaml", "tessera status llama-8b --namespace team-a --json"};
  }

  void declare_flags(FlagTable* table) override {
    Flag& job = table->add("job", &job_, "The file that was applied, or the name of the job.");
    job.value_name = "JOB.yaml|NAME";
    job.positional = true;
    job.required = true;
    table
        ->add("namespace", &name_space_,
              "Namespace of the job. Defaults to the one in the file, or else to training.")
        .value_name = "NAME";
    table->add("json", &as_json_, "Print a JSON object.");
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
