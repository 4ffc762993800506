#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cluster/deploy/volumes.h"
#include "comm/ranks/world.h"

namespace tessera {
namespace {

class DeployRuntimeCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy runtime"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "trainer", &trainer_, kJobKinds);
    declare(table, "device", &device_);
    declare(table, "secrets", &secrets_);
    declare_pod_flags(table);
    declare(table, "monitoring_namespace", &monitoring_namespace_);
    table->begin_section("Volume");
    declare(table, "storage_class", &storage_class_);
    declare_size(table, "storage", &storage_bytes_, "1200GiB");
    declare(table, "fsx", &fsx_);
    declare(table, "efs", &efs_);
    declare(table, "nfs", &nfs_);
    table->begin_section("Place");
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    RuntimeSettings runtime;
    runtime.pod = pod_settings(device_ == DeviceKind::kCuda);
    if (is_trainer(trainer_)) runtime.trainer = trainer_;
    runtime.volume = existing_volume(fsx_, efs_, nfs_);
    if (!runtime.volume && storage_class_ != "none") {
      runtime.storage_class = storage_class_;
    } else if (runtime.volume && table->is_set("storage_class")) {
      fail(ExitCode::kUsage, "--storage_class is for a new volume: give it, or the existing volume");
    }
    runtime.storage = fmt::format("{}Gi", std::max<int64_t>(1, storage_bytes_.value_or(0) >> 30));
    runtime.monitoring_namespace = monitoring_namespace_;
    if (secrets_) runtime.secrets = secrets(runtime.pod);
    write_manifests(runtime_documents(templates(), runtime));
  }

 private:
  std::vector<std::pair<std::string, std::string>> secrets(const PodSettings& pod) const {
    std::vector<std::pair<std::string, std::string>> out;
    const std::optional<std::string> token = process_environment()("HF_TOKEN");
    if (token && !token->empty()) {
      // Without the value in the message, which would show it.
      if (token->find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
          std::string::npos) {
        fail(ExitCode::kUsage, "HF_TOKEN: expected letters, digits, '_' and '-'");
      }
      out.emplace_back(pod.hf_secret, *token);
    }
    out.emplace_back(kMetricsSecret, random_token());
    if (is_trainer(trainer_)) out.emplace_back(kRendezvousSecret, random_token());
    return out;
  }

  JobKind trainer_ = JobKind::kTrainerV21;
  DeviceKind device_ = DeviceKind::kCpu;
  bool secrets_ = false;
  std::string monitoring_namespace_ = "monitoring";
  std::string storage_class_;
  std::optional<int64_t> storage_bytes_ = int64_t{1200} << 30;
  std::string fsx_;
  std::string efs_;
  std::string nfs_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_runtime_command() { return std::make_unique<DeployRuntimeCommand>(); }

}  // namespace tessera
