// Feeds rows into a spool (data/sources/row_spool.h) as another process would, from a thread.
#pragma once

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace tessera {

class RowFeeder {
 public:
  struct Options {
    size_t rows_per_file = 3;
    bool ends = true;  // writes `end` after the last row
  };

  RowFeeder(std::filesystem::path folder, std::vector<std::string> rows, Options options)
      : folder_(std::move(folder)), rows_(std::move(rows)), options_(options) {
    std::filesystem::create_directories(folder_);
    write("feeder", fmt::format("{}\n", ::getpid()));
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  RowFeeder(std::filesystem::path folder, std::vector<std::string> rows)
      : RowFeeder(std::move(folder), std::move(rows), Options()) {}

 private:
  static constexpr int kFilesAhead = 2;

  std::filesystem::path fed(int number) const { return folder_ / fmt::format("{}.jsonl", number); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / "unfinished") << text;
    std::filesystem::rename(folder_ / "unfinished", folder_ / name);
  }

  void run(const std::stop_token& stop) {
    size_t next_row = 0;
    int number = 0;
    bool has_ended = false;
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      if (std::filesystem::exists(folder_ / "again")) {
        for (int old = 0; old < number; ++old) std::filesystem::remove(fed(old));
        std::filesystem::remove(folder_ / "end");
        next_row = 0;
        number = 0;
        has_ended = false;
        std::filesystem::remove(folder_ / "again");
      }
      if (number >= kFilesAhead && std::filesystem::exists(fed(number - kFilesAhead))) continue;
      if (next_row == rows_.size()) {
        if (options_.ends && !std::exchange(has_ended, true)) write("end", "");
        continue;
      }
      std::string lines;
      for (size_t i = 0; i < options_.rows_per_file && next_row < rows_.size(); ++i)
        lines += rows_[next_row++] + "\n";
      write(fmt::format("{}.jsonl", number++), lines);
    }
  }

  std::filesystem::path folder_;
  std::vector<std::string> rows_;
  Options options_;
  std::jthread thread_;
};

}  // namespace tessera
