#include "train/output/line_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace tessera {
namespace {

// Total size of the leading complete lines that belong to steps up to `last_step`.
int64_t bytes_until(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream in(path, std::ios::binary);
  int64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer() ||
        record["step"] > last_step) {
      break;
    }
    bytes += std::ssize(line) + 1;
  }
  return bytes;
}

}  // namespace

LineFile::LineFile(const std::filesystem::path& path, int64_t keep) : path_(path) {
  const int64_t kept_bytes = keep > 0 ? bytes_until(path, keep) : 0;
  file_.reset(std::fopen(path.c_str(), "ae"));
  if (file_ && ftruncate(fileno(file_.get()), kept_bytes) != 0) file_.reset();
  if (!file_) fail_errno(ExitCode::kIoError, errno, fmt::format("cannot write {}", path.string()));
}

void LineFile::write(std::string_view line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF;
  if (written && std::fflush(file_.get()) == 0) return;
  if (!warned_) log_warning("cannot write {}: {}; training continues", path_.string(), std::strerror(errno));
  warned_ = true;
  std::clearerr(file_.get());
}

}  // namespace tessera
