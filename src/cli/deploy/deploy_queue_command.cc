#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/deploy/deploy_command.h"
#include "cli/flag_parser.h"
#include "cli/plan/plan_machine.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/job_plan.h"
#include "cluster/manifests/names.h"

namespace tessera {
namespace {

class DeployQueueCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy queue"; }

  void declare_flags(FlagTable* table) override {
    table->add_choice("device", &device_, "What the jobs of the queue run on.");
    table
        ->add("queue", &queue_,
              "Name of the LocalQueue; by default training, with --device cuda training-gpu.")
        .value_name = "NAME";
    table->add("priority_class", &priority_class_, "Name of the WorkloadPriorityClass of jobs.");
    table->add("topology", &topology_, "Place the pods of a job near each other; only sees existing nodes.");
    table
        ->add("instance", &instance_,
              "Instance type whose nodes the quota counts; by default r7i.16xlarge, with --device cuda "
              "g6e.16xlarge.")
        .value_name = "TYPE";
    limit_flag(table->add("nodes", &nodes_, "Nodes that jobs may use at the same time."), 1, 10'000);
    limit_flag(table->add("cpus", &cpus_, "CPUs of a pod, on nodes of a type that the catalogue lacks."), 1,
               4096);
    table->add_size("memory", &memory_bytes_, "480GiB", "Memory of a pod, likewise.");
    table->add("catalogue", &catalogue_, "Catalogue of instance types to use instead of the shipped one.")
        .value_name = "FILE";
    table->add_choice("kueue_api", &kueue_api_, {"v1beta2", "v1beta1"},
                      "Version of Kueue's API; Kueue up to 0.14 has v1beta1 only.");
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    const bool on_card = device_ == DeviceKind::kCuda;
    const NodeKind& kind = node_kind(on_card);
    const std::string queue = queue_.empty() ? kind.queue : queue_;
    check_label("queue", queue);
    check_object_name("priority_class", priority_class_);
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
    Value::Object context = common_context();
    context.push_back({"api", "kueue.x-k8s.io/" + kueue_api_});
    context.push_back({"queue", queue});
    context.push_back({"on_card", on_card});
    context.push_back({"node_type", kind.type});
    context.push_back({"taint", kind.taint});
    context.push_back({"cluster_queue", kind.cluster_queue});
    context.push_back({"devices", on_card ? devices(instance) : Value(Value::List())});
    context.push_back({"priority_class", priority_class_});
    context.push_back({"topology", topology_});
    context.push_back({"node_kind", cpus_ ? "pods" : instance.name});
    context.push_back({"vcpus", cpus_ ? Value() : Value(nodes_ * instance.num_vcpus)});
    context.push_back(
        {"usd_per_hour", fmt::format("{:.2f}", static_cast<double>(nodes_) * instance.usd_per_hour)});
    context.push_back({"nodes", nodes_});
    context.push_back({"cpus", nodes_ * node.pod_cpus});
    context.push_back({"memory", fmt::format("{}Mi", nodes_ * (node.pod_memory_bytes >> 20))});
    write_manifests(templates().render("queue.yaml.jinja", context));
  }

 private:
  // Kueue admits no job that asks for something its queue does not count.
  Value devices(const Instance& instance) const {
    const auto quota = [&](const char* name, int64_t of_node) {
      return Value::Object{{"name", name}, {"value", nodes_ * of_node}};
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
