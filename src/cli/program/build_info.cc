#include "cli/program/build_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>

#include "kernels/gemm/onednn_products.h"
#include "kernels/registry.h"

namespace tessera {

BuildInfo build_info() {
  BuildInfo info;
  info.version = TESSERA_VERSION;
  info.commit = build_commit();
  info.compiler = TESSERA_COMPILER;
  info.build_type = TESSERA_BUILD_TYPE;
  info.libraries = {
      {"oneDNN", onednn_version()}, {"Highway", TESSERA_HIGHWAY_VERSION}, {"ISA-L", TESSERA_ISAL_VERSION}};
  std::set<Isa, std::greater<>> isas;
  for (const KernelReport& kernel : kernel_reports()) {
    for (const ImplementationReport& each : kernel.implementations) isas.insert(each.isa);
  }
  isas.erase(Isa::kRef);
  for (const Isa isa : isas) info.instruction_sets.emplace_back(isa_name(isa));
  return info;
}

std::string version_text(const BuildInfo& info) {
  std::string out = fmt::format("tessera {}\n", info.version);
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<18}{}\n", name, value);
  };
  add("commit", info.commit);
  add("compiler", info.compiler);
  add("build type", info.build_type);
  for (const auto& [name, version] : info.libraries) add(name, version);
  add("instruction sets", fmt::format("{}", fmt::join(info.instruction_sets, ", ")));
  return out;
}

std::string version_json(const BuildInfo& info) {
  nlohmann::ordered_json libraries = nlohmann::ordered_json::object();
  for (const auto& [name, version] : info.libraries) libraries[name] = version;
  const nlohmann::ordered_json json = {
      {"version", info.version},
      {"commit", info.commit.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(info.commit)},
      {"compiler", info.compiler},
      {"build_type", info.build_type},
      {"libraries", libraries},
      {"instruction_sets", info.instruction_sets}};
  return json.dump(2) + "\n";
}

}  // namespace tessera
