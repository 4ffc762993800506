#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
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
    runtime.volume = volume();
    if (!runtime.volume && storage_class_ != "none") {
      runtime.storage_class = storage_class_;
    } else if (runtime.volume && table->is_set("storage_class")) {
      fail(ExitCode::kUsage, "--storage_class is for a new volume: give it, or the existing volume");
    }
    runtime.storage = fmt::format("{}Gi", std::max<int64_t>(1, storage_bytes_.value_or(0) >> 30));
    if (secrets_) runtime.secrets = secrets(runtime.pod);
    write_manifests(runtime_documents(templates(), runtime));
  }

 private:
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
    if (!fsx_.empty()) return fsx_volume(fsx_);
    if (!efs_.empty()) return efs_volume(efs_id(efs_));
    if (nfs_.empty()) return std::nullopt;
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
      // Without the value in the message, which would show it.
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
