#include "bench/shell.h"

#include <array>
#include <cerrno>
#include <cstdio>

#include "base/text.h"

namespace tessera {

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
