#include "cli/program/build_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "kernels/gemm/onednn_products.h"
#include "kernels/registry.h"

namespace tessera {

BuildFacts build_facts() {
  BuildFacts facts;
  facts.version = TESSERA_VERSION;
  facts.commit = build_commit();
  facts.compiler = TESSERA_COMPILER;
  facts.build_type = TESSERA_BUILD_TYPE;
  facts.libraries = {
      {"oneDNN", onednn_version()}, {"Highway", TESSERA_HIGHWAY_VERSION}, {"ISA-L", TESSERA_ISAL_VERSION}};
  std::set<Isa, std::greater<>> isas;
  for (const KernelReport& kernel : kernel_reports()) {
    for (const ImplementationReport& each : kernel.implementations) isas.insert(each.isa);
  }
  isas.erase(Isa::kRef);
  for (const Isa isa : isas) facts.instruction_sets.emplace_back(isa_name(isa));
  return facts;
}

std::string version_text(const BuildFacts& facts) {
  std::string out = fmt::format("tessera {}\n", facts.version);
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<18}{}\n", name, value);
  };
  add("commit", facts.commit);
  add("compiler", facts.compiler);
  add("build type", facts.build_type);
  for (const auto& [name, version] : facts.libraries) add(name, version);
  add("instruction sets", fmt::format("{}", fmt::join(facts.instruction_sets, ", ")));
  return out;
}

std::string version_json(const BuildFacts& facts) {
  nlohmann::ordered_json libraries = nlohmann::ordered_json::object();
  for (const auto& [name, version] : facts.libraries) libraries[name] = version;
  const nlohmann::ordered_json json = {
      {"version", facts.version},
      {"commit", facts.commit.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(facts.commit)},
      {"compiler", facts.compiler},
      {"build_type", facts.build_type},
      {"libraries", libraries},
      {"instruction_sets", facts.instruction_sets}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
