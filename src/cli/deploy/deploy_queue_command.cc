#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_plan.h"
#include "cluster/manifests/quantity.h"

namespace tessera {
namespace {

class DeployQueueCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy queue"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "device", &device_);
    declare(table, "queue", &queue_);
    declare(table, "priority_class", &priority_class_);
    declare(table, "topology", &topology_);
    declare(table, "instance", &instance_);
    declare(table, "nodes", &nodes_);
    declare(table, "cpus", &cpus_);
    declare_size(table, "memory", &memory_bytes_, "480GiB");
    declare(table, "catalogue", &catalogue_);
    declare(table, "kueue_api", &kueue_api_, {"v1beta2", "v1beta1"});
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    const bool on_card = device_ == DeviceKind::kCuda;
    const NodeKind& kind = node_kind(on_card);
    const std::string queue = queue_.empty() ? kind.queue : queue_;
    if (cpus_.has_value() != memory_bytes_.has_value()) {
      fail(ExitCode::kUsage, "--cpus and --memory: give both, or an --instance of the catalogue");
    }
    if (cpus_ && table->is_set("instance"))
      fail(ExitCode::kUsage, "--instance: not with --cpus and --memory");
    if (on_card && cpus_) {
      fail(ExitCode::kUsage, "--device cuda needs an --instance, which says how many cards a node has");
    }
    Instance instance;
    Allocatable node;
    if (cpus_) {
      node.pod_cpus = *cpus_;
      node.pod_memory_bytes = *memory_bytes_;
    } else {
      const std::string of_kind = on_card ? "g6e.16xlarge" : "r7i.16xlarge";
      const std::vector<Instance> catalogue = plan_catalogue(catalogue_);
      instance = find_instance(catalogue, instance_.empty() ? of_kind : instance_);
      if (on_card) check_cards(catalogue, instance);
      node = allocatable_of(instance);
    }
    write_manifests(templates().render(
        "queue.yaml.jinja",
        variables(*table, {{"api", "kueue.x-k8s.io/" + kueue_api_},
                           {"queue", queue},
                           {"on_card", on_card},
                           {"node_type", kind.type},
                           {"taint", kind.taint},
                           {"cluster_queue", kind.cluster_queue},
                           {"devices", on_card ? devices(instance) : Value(Value::List())},
                           {"node_kind", cpus_ ? "pods" : instance.name},
                           {"vcpus", cpus_ ? Value() : Value(nodes_ * instance.num_vcpus)},
                           {"usd_per_hour",
                            fmt::format("{:.2f}", static_cast<double>(nodes_) * instance.usd_per_hour)},
                           {"cpus", count_quantity(nodes_ * node.pod_cpus)},
                           {"memory", bytes_quantity(nodes_ * (node.pod_memory_bytes >> 20 << 20))}})));
  }

 private:
  // Kueue admits no job that asks for something its queue does not count.
  Value devices(const Instance& instance) const {
    const auto quota = [&](const char* name, int64_t of_node) {
      return Value::Object{{"name", name}, {"value", count_quantity(nodes_ * of_node)}};
    };
    Value::List list = {quota(kCardResource, instance.num_cards)};
    if (instance.num_efa_cards > 0) list.emplace_back(quota(kEfaResource, instance.num_efa_cards));
    return list;
  }

  DeviceKind device_ = DeviceKind::kCpu;
  std::string queue_;
  std::string priority_class_ = "tessera-training";
  bool topology_ = false;
  std::optional<int64_t> cpus_;
  std::optional<int64_t> memory_bytes_;
  std::string catalogue_;
  std::string instance_;
  int64_t nodes_ = 4;
  std::string kueue_api_ = "v1beta2";
};

}  // namespace

std::unique_ptr<Command> make_deploy_queue_command() { return std::make_unique<DeployQueueCommand>(); }

}  // namespace tessera
