// Any text is refused in one line, or read into documents that every rule can be applied to: each finding is
// one line.
#include <array>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cluster/manifests/lint.h"
#include "support/fuzz_support.h"

namespace tessera {
namespace {

constexpr std::array kWords = {"apiVersion: v1\n",
                               "kind: TrainJob\n",
                               "kind: ClusterTrainingRuntime\n",
                               "kind: JobSet\n",
                               "kind: NodePool\n",
                               "kind: ClusterQueue\n",
                               "metadata: {name: a}\n",
                               "spec:\n",
                               "  template:\n",
                               "replicatedJobs:\n",
                               "- name: node\n",
                               "at index 9",
                               "0440",
                               "yes",
                               "&a ",
                               "*a",
                               "---\n",
                               "{",
                               "[",
                               "\"",
                               "? ",
                               "!!int ",
                               "| \n",
                               "\xff"};

const std::string kSeeds[] = {
    "apiVersion: t\nkind: ClusterTrainingRuntime\nmetadata: {name: r}\nspec:\n  template:\n    spec:\n      "
    "failurePolicy: "
    "{rules: [{name: a, onJobFailureMessagePatterns: [at index 1$]}]}\n      replicatedJobs:\n      - name: "
    "node\n        "
    "template: {spec: {podFailurePolicy: {rules: [{onExitCodes: {values: [1]}}]}, template: {spec: "
    "{containers: [{name: node}], "
    "volumes: [{name: a, emptyDir: {medium: Memory}}]}}}}\n",
    "apiVersion: t\nkind: TrainJob\nmetadata: {name: j}\nspec:\n  trainer: {numNodes: 2, args: "
    "[--grace_period_s=3], "
    "resourcesPerNode: {limits: {cpu: 500m}}}\n  runtimePatches: [{manager: a/b}]\n",
    "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ClusterQueue\nmetadata: {name: q}\nspec:\n  resourceGroups:\n "
    " - flavors: [{name: "
    "a}]\n",
    "kind: NodePool\napiVersion: k\nmetadata: {name: p, labels: {a: b}}\nspec: {template: {spec: {taints: "
    "[{key: a}], "
    "requirements: [{key: a, operator: In, values: []}]}}}\n"};

}  // namespace
}  // namespace tessera

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using namespace tessera;
  return mutate_text(data, size, max_size, seed, kWords, kSeeds[seed % std::size(kSeeds)]);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const std::string& finding : lint_manifests(parse_manifests(text, "input"))) {
      TESSERA_CHECK(finding.find('\n') == std::string::npos && is_valid_utf8(finding), "{}", finding);
    }
  } catch (const Error& error) {
    check_refusal(error, ExitCode::kBadData);
  }
  return 0;
}
