// Downloads on the terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/terminal/terminal.h"
#include "hub/hub.h"

namespace tessera {

// "org/name [#####.....] 1.20 of 4.50 GiB  85.3 MB/s  ETA 00:40", at most `width` columns: if space runs out,
// the name is dropped first, then the bar.
std::string download_bar(const HubProgress& progress, int64_t width, bool utf8);

// Draws a bar of at most 80 columns on standard error; if that shows no status, logs a line every ten
// seconds.
class HubReport {
 public:
  void show(const HubProgress& progress);

 private:
  StatusLine status_;
  std::chrono::steady_clock::time_point last_line_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
