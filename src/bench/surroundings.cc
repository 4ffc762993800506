#include "bench/surroundings.h"

#include <unistd.h>
#include <array>
#include <cstdio>

#include <cerrno>
#include <string>

#include "base/error.h"
#include "base/text.h"

namespace tessera {

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) {
  std::string pattern = (parent / "tessera-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    fail_errno(ExitCode::kIoError, errno, pattern + ": cannot be created");
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string run_shell(const std::string& command, ExitCode on_failure) {
  FILE* const pipe = ::popen(fmt::format("{{ {} ; }} 2>&1", command).c_str(), "re");
  if (pipe == nullptr) fail_errno(ExitCode::kIoError, errno, fmt::format("cannot start '{}'", command));
  std::string output;
  std::array<char, 4096> piece = {};
  for (size_t got; (got = std::fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    output.append(piece.data(), got);
  if (::pclose(pipe) != 0) fail(on_failure, "'{}' failed: {}", command, printable(output.substr(0, 300)));
  return output;
}

}  // namespace tessera
