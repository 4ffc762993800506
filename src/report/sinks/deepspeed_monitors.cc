#include "report/sinks/deepspeed_monitors.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"
#include "report/sinks/log_values.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The last header, and the rows after it up to `last_sample`.
struct KeptRows {
  bool has_header = false;
  int64_t bytes = 0;
};

KeptRows rows_until(const fs::path& path, const std::string& header, int64_t last_sample) {
  std::ifstream in(path, std::ios::binary);
  KeptRows kept;
  int64_t end = 0;
  bool is_cut = false;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    end += std::ssize(line) + 1;
    int64_t sample = 0;
    if (line == header) {
      kept.has_header = true;
      is_cut = false;
    } else if (std::from_chars(line.data(), line.data() + line.size(), sample).ec != std::errc() ||
               sample > last_sample) {
      is_cut = true;
    }
    if (!is_cut) kept.bytes = end;
  }
  return kept;
}

}  // namespace

void DeepSpeedMonitor::on_step(const StepMetrics& metrics) {
  write("train_loss", metrics.loss, metrics.step);
  write("lr", metrics.learning_rate, metrics.step);
  write("grad_norm", metrics.grad_norm, metrics.step);
  write("tokens_per_second", metrics.tokens_per_second, metrics.step);
  if (metrics.mfu) write("mfu", *metrics.mfu, metrics.step);
}

void DeepSpeedMonitor::on_log(const LogEntry& entry) {
  for (const auto& [name, value] : entry.values) {
    const bool is_loss = name.starts_with("eval_") && name.ends_with("_loss");
    if (is_loss) write(name, number_of(value), entry.step);
  }
}

CsvFolder::CsvFolder(fs::path folder, std::optional<int64_t> resumed_samples)
    : folder_(std::move(folder)), resumed_samples_(resumed_samples) {
  create_folder(folder_);
}

std::unique_ptr<AppendFile> CsvFolder::open(const std::string& name) const {
  std::string file_name = name;
  std::ranges::replace(file_name, '/', '_');
  const fs::path path = folder_ / (file_name + ".csv");
  const std::string header = "step," + name.substr(name.rfind('/') + 1);
  try {
    KeptRows kept;
    if (resumed_samples_) kept = rows_until(path, header, *resumed_samples_);
    auto file =
        kept.has_header ? std::make_unique<AppendFile>(path, kept.bytes) : std::make_unique<AppendFile>(path);
    if (!kept.has_header) file->append(header + "\n");
    return file;
  } catch (const Error& error) {
    log_warning("{}; training continues", error.what());
    return nullptr;
  }
}

void CsvFolder::write(const std::string& name, double value, int64_t num_samples) {
  const auto [file, is_new] = files_.try_emplace(name);
  if (is_new) file->second = open(name);
  if (file->second) file->second->append(fmt::format("{},{}\n", num_samples, value));
}

}  // namespace tessera
