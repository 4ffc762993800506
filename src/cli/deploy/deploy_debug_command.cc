#include <algorithm>

#include "base/error.h"
#include "cli/deploy/deploy_command.h"
#include "cluster/manifests/allocatable.h"
#include "cluster/manifests/names.h"
#include "cluster/manifests/quantity.h"

namespace tessera {
namespace {

class DeployDebugCommand : public DeployCommand {
 public:
  std::string name() const override { return "deploy debug"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "what", &what_, {"doctor", "shell", "network"});
    declare(table, "device", &device_);
    declare(table, "node", &nodes_named_);
    declare(table, "nodes", &num_nodes_);
    declare(table, "efa", &num_efa_);
    declare(table, "image", &image_);
    declare(table, "claim", &claim_);
    declare_common_flags(table);
  }

  void run(FlagTable* table) override {
    const bool on_card = device_ == DeviceKind::kCuda;
    const bool is_network = what_ == "network";
    for (const std::string& node : nodes_named_) check_object_name("node", node);
    if (!is_network && nodes_named_.size() > 1)
      fail(ExitCode::kUsage, "--node: a pod is on one node, found {}", nodes_named_.size());
    if (!is_network && table->is_set("nodes")) fail(ExitCode::kUsage, "--nodes is for --what network");
    if (is_network && !nodes_named_.empty()) {
      if (table->is_set("nodes") || nodes_named_.size() < 2)
        fail(ExitCode::kUsage,
             "--node: the network is measured between two nodes or more: name them, or give --nodes");
      num_nodes_ = std::ssize(nodes_named_);
    }
    Value::List devices;
    const auto add_device = [&](const char* name, int64_t count) {
      if (count > 0) devices.emplace_back(Value::Object{{"name", name}, {"value", count_quantity(count)}});
    };
    add_device(kCardResource, on_card && !is_network ? 1 : 0);
    add_device(kEfaResource, num_efa_);
    write_manifests(templates().render(
        "debug.yaml.jinja",
        variables(*table, {{"name", "tessera-" + what_},
                           {"pod", "tessera-" + what_ + suffix()},
                           {"on_card", on_card},
                           {"node_type", node_kind(on_card).type},
                           {"nodes_named", Value::List(nodes_named_.begin(), nodes_named_.end())},
                           {"nodes", num_nodes_},
                           {"command", command_words()},
                           {"devices", std::move(devices)},
                           {"image", image_.empty() ? default_image(on_card) : image_},
                           {"mount", kDataMount}})));
  }

 private:
  Value command_words() const {
    if (what_ == "shell") return Value::List{"sleep", "infinity"};
    if (what_ == "network") return Value::List{"tessera", "launch", "bench", "network"};
    if (device_ == DeviceKind::kCuda) return Value::List{"sh", "-c", "nvidia-smi; tessera doctor"};
    return Value::List{"tessera", "doctor"};
  }

  // Another look has a pod of its own: Kubernetes does not let one change.
  std::string suffix() const {
    std::string suffix;
    if (device_ == DeviceKind::kCuda) suffix += "-cuda";
    if (num_efa_ > 0) suffix += "-efa";
    if (nodes_named_.size() == 1) suffix += "-" + nodes_named_[0].substr(0, nodes_named_[0].find('.'));
    return suffix;
  }

  std::string what_ = "doctor";
  DeviceKind device_ = DeviceKind::kCpu;
  std::vector<std::string> nodes_named_;
  int64_t num_nodes_ = 2;
  int64_t num_efa_ = 0;
  std::string image_;
  std::string claim_;
};

}  // namespace

std::unique_ptr<Command> make_deploy_debug_command() { return std::make_unique<DeployDebugCommand>(); }

}  // namespace tessera
