#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cluster/manifests/names.h"
#include "comm/ranks/world.h"

namespace tessera {
namespace {

class DeployRuntimeCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy runtime"; }

  void declare_flags(FlagTable* table) override {
    table->add_choice("trainer", &trainer_, kJobKinds,
                      "What runs jobs: a version of Kubeflow Trainer; with jobset or job there is no "
                      "ClusterTrainingRuntime.");
    table->add_choice(
        "device", &device_,
        "What the pods of the ClusterTrainingRuntime run on: processors with AMX, or NVIDIA cards.");
    table->add("secrets", &secrets_, "Write the Secrets as well.");
    declare_pod_flags(table);
    table->begin_section("Volume");
    table
        ->add("storage_class", &storage_class_,
              "StorageClass of a new volume that all pods write to; \"\" is the cluster's default, none "
              "writes no claim (`tessera deploy cluster --part storage` does).")
        .value_name = "NAME";
    table->add_size("storage", &storage_bytes_, "1200GiB", "Size of the volume.");
    table
        ->add("fsx", &fsx_,
              "An existing FSx for Lustre: DNS name and mount name, as in "
              "fs-0123.fsx.eu-west-1.amazonaws.com/abcdef or, as mount has it, "
              "fs-0123.fsx.eu-west-1.amazonaws.com@tcp:/abcdef.")
        .value_name = "DNS/MOUNT";
    table->add("efs", &efs_, "An existing EFS: its ID, as in fs-0123.").value_name = "ID";
    table->add("nfs", &nfs_, "An existing NFS export, as in 10.0.0.5:/export.").value_name = "HOST:PATH";
    table->begin_section("Place");
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    RuntimeSettings runtime;
    runtime.pod = pod_settings(device_ == DeviceKind::kCuda);
    if (is_trainer(trainer_)) runtime.trainer = trainer_;
    runtime.volume = volume();
    if (runtime.volume && !runtime.volume->driver.empty()) check_owner_name(runtime.pod.claim);
    if (!runtime.volume && storage_class_ != "none") {
      if (!storage_class_.empty()) check_object_name("storage_class", storage_class_);
      runtime.storage_class = storage_class_;
    } else if (runtime.volume && table->is_set("storage_class")) {
      fail(ExitCode::kUsage, "--storage_class is for a new volume: give it, or the existing volume");
    }
    runtime.storage = fmt::format("{}Gi", std::max<int64_t>(1, storage_bytes_.value_or(0) >> 30));
    if (secrets_) runtime.secrets = secrets(runtime.pod);
    write_manifests(runtime_documents(templates(), runtime));
  }

 private:
  // The Job that gives the volume to the pods' user is called after the claim.
  static void check_owner_name(const std::string& claim) {
    constexpr size_t kMaxLength = kMaxLabelLength - std::string_view("-owner").size();
    if (claim.size() <= kMaxLength) return;
    fail(ExitCode::kUsage,
         "--claim: '{}' has {} characters, and a Job of its name and '-owner' at most {}: shorten it to {}",
         claim, claim.size(), kMaxLabelLength, kMaxLength);
  }

  // DNS/MOUNT, or as the mount command has it: DNS@tcp:/MOUNT.
  static RuntimeVolume fsx_volume(const std::string& text) {
    constexpr std::string_view kLustre = "@tcp:/";
    std::string name = text;
    if (const size_t at = name.find(kLustre); at != std::string::npos) name.replace(at, kLustre.size(), "/");
    const size_t slash = name.find('/'), dot = name.find('.');
    if (!name.starts_with("fs-") || slash == std::string::npos || dot > slash || slash + 1 == name.size() ||
        name.find('/', slash + 1) != std::string::npos || name.find_first_of("@: ") != std::string::npos) {
      fail(ExitCode::kUsage,
           "--fsx: expected DNS/MOUNT such as fs-0123.fsx.eu-west-1.amazonaws.com/abcdef, or DNS@tcp:/MOUNT, "
           "found '{}'",
           printable(text));
    }
    return lustre_volume(name.substr(0, dot), name.substr(0, slash), name.substr(slash + 1));
  }

  // fs-0123, with an access point fs-0123::fsap-4567, or as the mount command has it:
  // fs-0123.efs.eu-west-1.amazonaws.com:/.
  static std::string efs_id(const std::string& text) {
    std::string id = text;
    const size_t dot = id.find(".efs.");
    if (dot != std::string::npos && (id.ends_with(".amazonaws.com") || id.ends_with(".amazonaws.com:/")))
      id.resize(dot);
    if (!id.starts_with("fs-") || id.find_first_of("./ @") != std::string::npos) {
      fail(ExitCode::kUsage, "--efs: expected an ID such as fs-0123, found '{}'", printable(text));
    }
    return id;
  }

  std::optional<RuntimeVolume> volume() const {
    if (!fsx_.empty() + !efs_.empty() + !nfs_.empty() > 1) {
      fail(ExitCode::kUsage, "--fsx, --efs and --nfs: give one volume");
    }
    if (!fsx_.empty()) {
      check_text("fsx", fsx_);
      return fsx_volume(fsx_);
    }
    if (!efs_.empty()) {
      check_text("efs", efs_);
      return efs_volume(efs_id(efs_));
    }
    if (nfs_.empty()) return std::nullopt;
    check_text("nfs", nfs_);
    const size_t colon = nfs_.find(":/");
    if (colon == 0 || colon == std::string::npos) {
      fail(ExitCode::kUsage, "--nfs: expected HOST:PATH such as 10.0.0.5:/export, found '{}'",
           printable(nfs_));
    }
    RuntimeVolume volume;
    volume.about = "NFS";
    volume.server = nfs_.substr(0, colon);
    volume.path = nfs_.substr(colon + 1);
    // A hard mount waits for the server instead of failing the ranks; large transfers for checkpoints.
    volume.mount_options = {"hard", "nfsvers=4.1", "rsize=1048576", "wsize=1048576", "nconnect=8"};
    return volume;
  }

  static std::vector<std::pair<std::string, std::string>> secrets(const PodSettings& pod) {
    std::vector<std::pair<std::string, std::string>> out;
    const std::optional<std::string> token = process_environment()("HF_TOKEN");
    if (token && !token->empty()) {
      // Not check_text(), which would show it.
      if (token->find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") !=
          std::string::npos) {
        fail(ExitCode::kUsage, "HF_TOKEN: expected letters, digits, '_' and '-'");
      }
      out.emplace_back(pod.hf_secret, *token);
    }
    out.emplace_back(kMetricsSecret, random_token());
    return out;
  }

  JobKind trainer_ = JobKind::kTrainerV21;
  DeviceKind device_ = DeviceKind::kCpu;
  bool secrets_ = false;
  std::string storage_class_;
  std::optional<int64_t> storage_bytes_ = int64_t{1200} << 30;
  std::string fsx_;
  std::string efs_;
  std::string nfs_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_runtime_command() { return std::make_unique<DeployRuntimeCommand>(); }

}  // namespace tessera
