#include "io/absolute_path.h"

#include <system_error>

namespace tessera {
namespace {

namespace fs = std::filesystem;

Error error_about(const fs::path& path, const std::error_code& cause) {
  std::error_code gone;
  const fs::path here = fs::current_path(gone);
  if (here.empty() && path.is_relative()) {
    return Error(
        ExitCode::kNoInput,
        fmt::format("{}: the current folder, which this path is relative to, cannot be used: {}; if it was "
                    "removed or replaced, enter it again by cd",
                    path.native(), gone.message()));
  }
  return Error(ExitCode::kIoError, fmt::format("{}: {}", path.native(), cause.message()));
}

}  // namespace

fs::path absolute_path(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (error) throw error_about(path, error);
  return absolute;
}

Error error_from(const fs::filesystem_error& error) { return error_about(error.path1(), error.code()); }

}  // namespace tessera
