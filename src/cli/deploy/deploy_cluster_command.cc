#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cluster/deploy/infrastructure.h"
#include "cluster/manifests/manifest.h"
#include "cluster/manifests/names.h"
#include "forecast/instances/node_pool.h"

namespace tessera {
namespace {

// "KarpenterControllerPolicy-" and the name fit into 64 characters, the longest name of a role.
constexpr size_t kMaxClusterName = 38;

class DeployClusterCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy cluster"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "part", &part_, {"nodes", "node_group", "eksctl", "storage"});
    declare(table, "device", &device_);
    declare(table, "name", &name_);
    declare(table, "region", &region_);
    declare(table, "zone", &zone_);
    declare(table, "storage", &storage_, {"fsx", "efs", "s3"});
    declare(table, "infrastructure", &infrastructure_);
    declare(table, "spot_only", &spot_only_);
    declare(table, "efa", &efa_);
    declare(table, "max_vcpus", &max_vcpus_);
    declare(table, "max_cards", &max_cards_);
    declare(table, "instance", &instance_);
    declare(table, "nodes", &nodes_);
    declare(table, "placement_group", &placement_group_);
    declare(table, "capacity_reservation", &capacity_reservation_);
    declare(table, "capacity_block", &capacity_block_);
    declare(table, "node_role", &node_role_);
    declare(table, "node_disk_gib", &node_disk_gib_);
    declare(table, "ami", &ami_);
    declare(table, "kubernetes_version", &kubernetes_version_);
    declare(table, "system_instance", &system_instance_);
    declare(table, "public_access_cidr", &public_access_cidrs_);
    declare(table, "disk_gib", &disk_gib_);
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    std::optional<Infrastructure> infrastructure;
    if (!infrastructure_.empty()) {
      infrastructure = read_infrastructure(infrastructure_);
      take(*table, "name", &name_, infrastructure->name);
      take(*table, "region", &region_, infrastructure->region);
      take(*table, "zone", &zone_, infrastructure->zone);
      take(*table, "storage", &storage_, infrastructure->storage);
    } else if (part_ == "eksctl" || part_ == "storage") {
      fail(ExitCode::kUsage,
           "--part {} needs --infrastructure FILE: run `terraform output -json >FILE` in "
           "deploy/eks/terraform, or deploy/eks/up.sh, which does both",
           part_);
    }
    check_values();
    warn_of_other_parts(*table);
    const bool on_card = device_ == DeviceKind::kCuda;
    if (node_role_.empty()) node_role_ = "KarpenterNodeRole-" + name_;
    const PoolTypes types = types_of_node_pool(shipped_catalogue(), on_card, efa_);
    if (part_ == "node_group") check_node_group(types);
    const Value::Object context = variables(
        *table,
        {{"infrastructure", infrastructure ? Value(infrastructure->values) : Value()},
         {"on_card", on_card},
         {"node_type", node_kind(on_card).type},
         {"taint", node_kind(on_card).taint},
         {"families", Value::List(types.families.begin(), types.families.end())},
         {"sizes", Value::List(types.sizes.begin(), types.sizes.end())},
         {"public_access_cidrs", Value::List(public_access_cidrs_.begin(), public_access_cidrs_.end())}});
    write_manifests(
        part_ == "storage"
            ? storage_documents(templates(), context, claimed(infrastructure->values))
            : templates().render(part_ == "eksctl" ? "cluster_eksctl.yaml.jinja" : "cluster_nodes.yaml.jinja",
                                 context));
  }

 private:
  // Flags that only one part has a use for.
  void warn_of_other_parts(const FlagTable& table) const {
    constexpr std::pair<const char*, std::string_view> kOnlyFor[] = {
        {"device", "nodes or node_group"},
        {"spot_only", "nodes"},
        {"efa", "nodes or node_group"},
        {"max_vcpus", "nodes"},
        {"max_cards", "nodes"},
        {"instance", "node_group"},
        {"nodes", "node_group"},
        {"placement_group", "node_group"},
        {"capacity_reservation", "nodes or node_group"},
        {"capacity_block", "node_group"},
        {"node_role", "nodes"},
        {"node_disk_gib", "nodes or node_group"},
        {"ami", "nodes"},
        {"kubernetes_version", "eksctl"},
        {"system_instance", "eksctl"},
        {"public_access_cidr", "eksctl"},
        {"disk_gib", "storage"}};
    for (const auto& [flag, part] : kOnlyFor) {
      if (table.is_set(flag) && part.find(part_) == std::string_view::npos)
        log_warning("--{} has no effect: it is for --part {}, this is --part {}", flag, part, part_);
    }
  }

  // The file system that Terraform made; without one the template writes a disk and a bucket.
  RuntimeSettings claimed(const Value& infrastructure) const {
    RuntimeSettings storage;
    storage.pod.name_space = name_space();
    const auto text = [&](const std::string& field) {
      return text_at(infrastructure, "file_system." + field);
    };
    if (storage_ == "fsx") storage.volume = lustre_volume(text("id"), text("dns_name"), text("mount_name"));
    if (storage_ == "efs") storage.volume = efs_volume(text("id") + "::" + text("access_point"));
    storage.storage = text("gib") + "Gi";
    return storage;
  }

  // The value from the file; a value given as a flag has to be the same.
  void take(const FlagTable& table, std::string_view flag, std::string* target,
            const std::string& value) const {
    if (table.is_set(flag) && *target != value) {
      fail(ExitCode::kUsage, "--{} is '{}', but {} has '{}': leave the flag out, or run Terraform with it",
           flag, printable(*target), printable(infrastructure_), value);
    }
    *target = value;
  }

  // A group has one type, which the program can use.
  void check_node_group(const PoolTypes& types) const {
    if (instance_.empty())
      fail(ExitCode::kUsage, "--instance is missing: --part node_group has nodes of one type");
    const size_t dot = instance_.find('.');
    const auto has = [](const std::vector<std::string>& all, const std::string& one) {
      return std::ranges::find(all, one) != all.end();
    };
    if (dot == std::string::npos || !has(types.families, instance_.substr(0, dot)) ||
        !has(types.sizes, instance_.substr(dot + 1))) {
      fail(ExitCode::kUsage, "--instance: expected a type of {}{}, found '{}'",
           fmt::join(types.families, ", "), efa_ ? " with an EFA card" : "", printable(instance_));
    }
    if (capacity_block_ && capacity_reservation_.empty()) {
      fail(ExitCode::kUsage, "--capacity_block needs --capacity_reservation ID: a block is a reservation");
    }
  }

  void check_values() const {
    if (name_.empty() || region_.empty()) {
      fail(ExitCode::kUsage, "--{} is missing: name the cluster, or give --infrastructure FILE",
           name_.empty() ? "name" : "region");
    }
    check_label("name", name_);
    if (name_.size() > kMaxClusterName || name_.front() < 'a') {
      fail(ExitCode::kUsage,
           "--name: expected a letter first and at most {} characters, so that the names of its IAM roles "
           "fit into 64, found '{}'",
           kMaxClusterName, name_);
    }
    if (!ami_.starts_with("al2023@")) {
      fail(ExitCode::kUsage,
           "--ami: expected al2023@latest or al2023@vYYYYMMDD: the user data is written for Amazon Linux "
           "2023, "
           "found '{}'",
           printable(ami_));
    }
  }

  std::string part_ = "nodes";
  DeviceKind device_ = DeviceKind::kCpu;
  int64_t max_cards_ = 8;
  std::string name_;
  std::string region_;
  std::string zone_;
  std::string storage_ = "fsx";
  std::string infrastructure_;
  bool spot_only_ = false;
  bool efa_ = false;
  int64_t max_vcpus_ = 1024;
  std::string instance_;
  int64_t nodes_ = 2;
  std::string placement_group_;
  std::string capacity_reservation_;
  bool capacity_block_ = false;
  std::string node_role_;
  int64_t node_disk_gib_ = 100;
  std::string ami_ = "al2023@latest";
  std::string kubernetes_version_ = "1.34";
  std::string system_instance_ = "m7i.large";
  std::vector<std::string> public_access_cidrs_ = {"0.0.0.0/0"};
  int64_t disk_gib_ = 500;
};

}  // namespace

std::unique_ptr<Command> make_deploy_cluster_command() { return std::make_unique<DeployClusterCommand>(); }

}  // namespace tessera
