// Lists what `tessera --version` prints about this build.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct BuildInfo {
  std::string version;  // "0.1.0"
  std::string commit;   // "" outside a git checkout; "-dirty" at the end: with changes
  std::string compiler;
  std::string build_type;
  std::vector<std::pair<std::string, std::string>> libraries;  // name and version
  std::vector<std::string> instruction_sets;                   // that kernels were compiled for, best first
};

// Error(kBadConfig) if TESSERA_ISA cannot be honoured, as for every command that needs kernels.
BuildInfo build_info();

const char* build_commit();  // BuildInfo::commit, from a file that the build writes

// "tessera 0.1.0" and a line for each of the others.
std::string version_text(const BuildInfo& info);
std::string version_json(const BuildInfo& info);

}  // namespace tessera
