#include "forecast/instances/node_pool.h"

#include <algorithm>

namespace tessera {
namespace {

std::string size_of(const Instance& instance) { return instance.name.substr(instance.name.find('.') + 1); }

void add_once(std::vector<std::string>* list, const std::string& text) {
  if (std::ranges::find(*list, text) == list->end()) list->push_back(text);
}

}  // namespace

bool in_node_pool(const Instance& instance, bool on_card) {
  if (on_card || instance.num_cards > 0) return on_card && instance.num_cards > 0;
  constexpr int64_t kMinVcpus = 32, kMaxVcpus = 192;
  return instance.figures.amx && instance.num_vcpus >= kMinVcpus && instance.num_vcpus <= kMaxVcpus &&
         instance.name.find(".metal") == std::string::npos;
}

PoolTypes types_of_node_pool(const std::vector<Instance>& catalogue, bool on_card, bool efa) {
  const auto has_efa_everywhere = [&](const std::string& size) {
    return std::ranges::all_of(catalogue, [&](const Instance& instance) {
      return !in_node_pool(instance, on_card) || size_of(instance) != size || instance.num_efa_cards > 0;
    });
  };
  PoolTypes types;
  for (const Instance& instance : catalogue) {
    if (!in_node_pool(instance, on_card) || (efa && !has_efa_everywhere(size_of(instance)))) continue;
    add_once(&types.families, instance.family);
    add_once(&types.sizes, size_of(instance));
  }
  return types;
}

}  // namespace tessera
