#include "shard/layout/placement.h"

#include <algorithm>

namespace tessera {
namespace {

bool is_on_device(const Placement& of) {
  return of.weights == WeightChoice::kOnDevice || of.weights == WeightChoice::kHostUpdated;
}

// Combinations that do not exist, and why.
struct PlacementRule {
  bool (*applies)(const Placement& placement);
  const char* why;
};
constexpr PlacementRule kRules[] = {
    {[](const Placement& of) { return is_on_device(of) && !of.is_single; },
     "the ranks of a job share weights in memory of the host: on a device each has those in use"},
    {[](const Placement& of) { return is_on_device(of) && of.device_window; },
     "weights that are on the device need no window to it"},
    {[](const Placement& of) { return is_on_device(of) != (of.gradients == GradientChoice::kOnDevice); },
     "gradients of all weights are on a device if the weights are, and only then"},
    {[](const Placement& of) {
       return (of.weights == WeightChoice::kOnDevice) != (of.state == StateChoice::kOnDevice);
     },
     "whoever updates the weights has the optimizer's state"},
    {[](const Placement& of) {
       return (of.weights == WeightChoice::kHostUpdated) != (of.update == UpdateChoice::kBesideNextStep);
     },
     "only a device computes with weights while the host updates others"},
    {[](const Placement& of) {
       return (of.gradients == GradientChoice::kConsumedInBackward) !=
              (of.update == UpdateChoice::kInBackward);
     },
     "gradients that are gone after the backward pass are used in it, and others are kept for the update"},
    {[](const Placement& of) {
       return of.weights == WeightChoice::kLayerFile && of.update != UpdateChoice::kInBackward;
     },
     "an update after the passes reads and writes all layers once more"},
    {[](const Placement& of) { return of.weights == WeightChoice::kLayerFile && !of.is_single; },
     "the ranks of a node share weights in memory: several would read each layer from the disk"},
    {[](const Placement& of) {
       return of.weights == WeightChoice::kHostUpdated && of.state == StateChoice::kFile;
     },
     "state in a file is slower than the passes that its update is to be beside"},
    {[](const Placement& of) {
       return of.nodes_train_apart && (of.update != UpdateChoice::kAfterStep || is_on_device(of));
     },
     "the outer update needs the weights of a step on the host, all at once"},
};

}  // namespace

Placement placement_of(const ZeroSettings& settings, int world_size, bool has_device) {
  Placement placement;
  placement.is_single = world_size == 1;
  placement.nodes_train_apart = settings.outer.has_value();
  placement.device_window = settings.parameters_on_host;
  if (has_device && !settings.parameters_on_host) {
    placement.gradients = GradientChoice::kOnDevice;
    if (!settings.optimizer_on_host) {
      placement.weights = WeightChoice::kOnDevice;
      placement.state = StateChoice::kOnDevice;
      return placement;
    }
    placement.weights = WeightChoice::kHostUpdated;
    placement.update = UpdateChoice::kBesideNextStep;
    return placement;
  }
  if (settings.state_folder) placement.state = StateChoice::kFile;
  if (!settings.optimizer_in_backward) return placement;
  placement.gradients = GradientChoice::kConsumedInBackward;
  placement.update = UpdateChoice::kInBackward;
  if (settings.weight_folder) placement.weights = WeightChoice::kLayerFile;
  return placement;
}

const char* why_not(const Placement& placement) {
  const auto rule =
      std::ranges::find_if(kRules, [&](const PlacementRule& of) { return of.applies(placement); });
  return rule == std::end(kRules) ? nullptr : rule->why;
}

}  // namespace tessera
