#include "cli/terminal/hub_report.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kMinBarColumns = 10;
constexpr int64_t kMaxBarColumns = 30;

std::string state_text(const HubProgress& progress) {
  std::string text = fmt::format("{} of {}  {:.1f} MB/s", format_bytes(progress.done_bytes),
                                 format_bytes(progress.total_bytes), progress.bytes_per_second * 1e-6);
  const auto missing = static_cast<double>(progress.total_bytes - progress.done_bytes);
  if (progress.bytes_per_second > 0 && missing > 0)
    text += "  ETA " + format_duration(missing / progress.bytes_per_second);
  return text;
}

}  // namespace

std::string download_bar(const HubProgress& progress, int64_t width, bool utf8) {
  const std::string state = state_text(progress);
  const auto columns_left = [&](size_t used) { return width - static_cast<int64_t>(used); };
  std::string name = progress.name + " ";
  if (columns_left(name.size() + state.size() + 3) < kMinBarColumns) name.clear();
  const int64_t columns = std::min(kMaxBarColumns, columns_left(name.size() + state.size() + 3));
  if (columns < kMinBarColumns) return state.substr(0, static_cast<size_t>(width));
  const double fraction = progress.total_bytes == 0 ? 1
                                                    : static_cast<double>(progress.done_bytes) /
                                                          static_cast<double>(progress.total_bytes);
  return fmt::format("{}[{}] {}", name, bar_text(std::clamp(fraction, 0.0, 1.0), columns, utf8), state);
}

void HubReport::show(const HubProgress& progress) {
  if (error_shows_status()) {
    status_.show(
        progress.is_waiting
            ? fmt::format("{}: waiting for another process, which downloads it", progress.name)
            : download_bar(progress, std::min(kMaxLineColumns, terminal_width() - 1), terminal_is_utf8()));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool is_done = progress.num_files_done == progress.num_files;
  if (progress.is_waiting || (!is_done && now - last_line_ < kPlainLineInterval)) return;
  last_line_ = now;
  if (progress.num_files > 0) log_info("{}: {}", progress.name, state_text(progress));
}

}  // namespace tessera
