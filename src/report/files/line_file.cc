#include "report/files/line_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

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

LineFile::LineFile(const std::filesystem::path& path, int64_t keep)
    : file_(path, keep > 0 ? bytes_until(path, keep) : 0) {}

void LineFile::write(std::string_view line) { file_.append(std::string(line) + "\n"); }

}  // namespace tessera
