#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/deploy/cluster_infrastructure.h"
#include "cli/deploy/deploy_command.h"
#include "cli/flag_parser.h"
#include "cluster/manifests/manifest.h"
#include "cluster/manifests/names.h"
#include "forecast/instances/catalogue.h"

namespace tessera {
namespace {

// "KarpenterControllerPolicy-" and the name fit into 64 characters, the longest name of a role.
constexpr size_t kMaxClusterName = 38;

struct InstanceChoice {
  Value::List families;
  Value::List sizes;
};

void add_once(Value::List* list, const std::string& text) {
  if (std::ranges::find(*list, Value(text)) == list->end()) list->emplace_back(text);
}

// The families of the catalogue with AMX, or with cards, and their sizes; with `efa` only sizes that have an
// EFA card in every family, because Karpenter combines any family with any size.
InstanceChoice choose_instances(bool on_card, bool efa) {
  InstanceChoice choice;
  const std::vector<Instance> catalogue = shipped_catalogue();
  const auto size_of = [](const Instance& instance) {
    return instance.name.substr(instance.name.find('.') + 1);
  };
  const auto has_efa_everywhere = [&](const std::string& size) {
    return std::ranges::all_of(catalogue, [&](const Instance& instance) {
      return !in_node_pool(instance, on_card) || size_of(instance) != size || instance.num_efa_cards > 0;
    });
  };
  for (const Instance& instance : catalogue) {
    if (!in_node_pool(instance, on_card) || (efa && !has_efa_everywhere(size_of(instance)))) continue;
    add_once(&choice.families, instance.family);
    add_once(&choice.sizes, size_of(instance));
  }
  return choice;
}

bool is_made_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.size() <= 64 && text.find_first_not_of(characters) == std::string_view::npos;
}

class DeployClusterCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy cluster"; }

  void declare_flags(FlagTable* table) override {
    table->add_choice("part", &part_, {"nodes", "eksctl", "storage"}, "What to write.");
    table->add_choice(
        "device", &device_,
        "Nodes with AMX, or with NVIDIA cards (--part nodes): two pools, which a cluster can have both.");
    table->add("name", &name_, "Name of the cluster.");
    table->add("region", &region_, "Region of AWS.");
    table->add("zone", &zone_, "Zone of the training nodes; any if not given.");
    table->add_choice(
        "storage", &storage_, {"fsx", "efs", "s3"},
        "Storage of the volume: FSx for Lustre, EFS, or a disk with an S3 bucket to read from.");
    table
        ->add("infrastructure", &infrastructure_,
              "Output of `terraform output -json` in deploy/eks/terraform. It gives name, region, zone and "
              "storage.")
        .value_name = "FILE";
    table->add("spot_only", &spot_only_, "No on-demand nodes when spot capacity runs out.");
    table->add("efa", &efa_, "Only sizes with an EFA card.");
    limit_flag(
        table->add("max_vcpus", &max_vcpus_, "The most virtual CPUs that Karpenter may start in total."), 32,
        1'000'000);
    limit_flag(table->add("max_cards", &max_cards_,
                          "With --device cuda, the most NVIDIA cards that Karpenter may start in total."),
               1, 100'000);
    table
        ->add("node_role", &node_role_,
              "IAM role of the training nodes, by default KarpenterNodeRole- and the cluster's name.")
        .value_name = "NAME";
    limit_flag(
        table->add("node_disk_gib", &node_disk_gib_,
                   "Size of a training node's own disk, in GiB: the images of the pods and their /tmp."),
        30, 16'384);
    table->add("ami", &ami_, "Image of the training nodes, as Karpenter's alias.");
    table->add("kubernetes_version", &kubernetes_version_, "Version of the cluster.");
    table->add("system_instance", &system_instance_,
               "Instance type of the two nodes that run everything but training.");
    table->add("public_access_cidr", &public_access_cidrs_, "Networks that can reach the API server.")
        .value_name = "CIDR";
    limit_flag(table->add("disk_gib", &disk_gib_,
                          "Size of the volume with --part storage and --storage s3, in GiB."),
               1, 16'384);
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
    } else if (part_ != "nodes") {
      fail(ExitCode::kUsage,
           "--part {} needs --infrastructure FILE: run `terraform output -json >FILE` in "
           "deploy/eks/terraform, or deploy/eks/up.sh, which does both",
           part_);
    }
    check_values();
    warn_of_other_parts(*table);
    Value::Object context = common_context();
    context.push_back({"name", name_});
    context.push_back({"region", region_});
    context.push_back({"zone", zone_});
    context.push_back({"storage", storage_});
    if (infrastructure) context.push_back({"infrastructure", infrastructure->values});
    if (part_ == "nodes") {
      const bool on_card = device_ == DeviceKind::kCuda;
      InstanceChoice choice = choose_instances(on_card, efa_);
      context.push_back({"on_card", on_card});
      context.push_back({"node_type", node_kind(on_card).type});
      context.push_back({"taint", node_kind(on_card).taint});
      context.push_back({"max_cards", max_cards_});
      context.push_back({"families", std::move(choice.families)});
      context.push_back({"sizes", std::move(choice.sizes)});
      context.push_back({"spot_only", spot_only_});
      context.push_back({"efa", efa_});
      context.push_back({"max_vcpus", max_vcpus_});
      context.push_back({"ami", ami_});
      context.push_back({"node_role", node_role_.empty() ? "KarpenterNodeRole-" + name_ : node_role_});
      context.push_back({"node_disk_gib", node_disk_gib_});
    } else if (part_ == "eksctl") {
      context.push_back({"kubernetes_version", kubernetes_version_});
      context.push_back({"system_instance", system_instance_});
      Value::List cidrs;
      for (const std::string& cidr : public_access_cidrs_) cidrs.emplace_back(cidr);
      context.push_back({"public_access_cidrs", std::move(cidrs)});
    } else {
      context.push_back({"disk_gib", disk_gib_});
      write_manifests(storage_documents(templates(), context, claimed(infrastructure->values)));
      return;
    }
    write_manifests(templates().render("cluster_" + part_ + ".yaml.jinja", context));
  }

 private:
  // Flags that only one part has a use for.
  void warn_of_other_parts(const FlagTable& table) const {
    constexpr std::pair<const char*, const char*> kOnlyFor[] = {{"device", "nodes"},
                                                                {"spot_only", "nodes"},
                                                                {"efa", "nodes"},
                                                                {"max_vcpus", "nodes"},
                                                                {"max_cards", "nodes"},
                                                                {"node_role", "nodes"},
                                                                {"node_disk_gib", "nodes"},
                                                                {"ami", "nodes"},
                                                                {"kubernetes_version", "eksctl"},
                                                                {"system_instance", "eksctl"},
                                                                {"public_access_cidr", "eksctl"},
                                                                {"disk_gib", "storage"}};
    for (const auto& [flag, part] : kOnlyFor) {
      if (table.is_set(flag) && part_ != part)
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

  static void check(std::string_view flag, const std::string& value, bool is_right,
                    std::string_view expected) {
    if (!is_right) fail(ExitCode::kUsage, "--{}: expected {}, found '{}'", flag, expected, printable(value));
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
    check("region", region_, is_made_of(region_, "abcdefghijklmnopqrstuvwxyz0123456789-"),
          "a region such as us-east-1");
    check("zone", zone_,
          zone_.empty() ||
              (is_made_of(zone_, "abcdefghijklmnopqrstuvwxyz0123456789-") && zone_.starts_with(region_)),
          fmt::format("a zone of the region, such as {}a", region_));
    // The EC2NodeClass takes a name, not an ARN.
    check("node_role", node_role_,
          node_role_.empty() ||
              is_made_of(node_role_, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+=,.@-"),
          "the name of an IAM role, not its ARN");
    check("ami", ami_,
          ami_ == "al2023@latest" ||
              (ami_.starts_with("al2023@v") && ami_.size() == 16 && is_made_of(ami_.substr(8), "0123456789")),
          "al2023@latest or al2023@vYYYYMMDD: the user data is written for Amazon Linux 2023");
    check("kubernetes_version", kubernetes_version_,
          kubernetes_version_.starts_with("1.") && is_made_of(kubernetes_version_.substr(2), "0123456789"),
          "a version such as 1.34");
    check("system_instance", system_instance_,
          is_made_of(system_instance_, "abcdefghijklmnopqrstuvwxyz0123456789-."),
          "an instance type such as m7i.large");
    for (const std::string& cidr : public_access_cidrs_) {
      check("public_access_cidr", cidr,
            is_made_of(cidr, "0123456789./") && cidr.find('/') != std::string::npos,
            "a network such as 203.0.113.7/32");
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
