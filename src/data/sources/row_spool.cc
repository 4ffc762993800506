#include "data/sources/row_spool.h"

#include <signal.h>

#include <cerrno>
#include <chrono>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "io/file.h"
#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kSpoolPoll(20);
constexpr double kSpoolLogInterval_s = 60;
// Written by begin_reading(): the start that reads the files.
constexpr const char* kReadingFile = "reading";

std::string fed_name(int64_t number) { return fmt::format("{}.jsonl", number); }

}  // namespace

RowSpool::RowSpool(fs::path folder) : folder_(std::move(folder)) {
  std::error_code error;
  if (!fs::is_directory(folder_, error))
    fail(ExitCode::kNoInput, "dataset_spool {}: no such folder", folder_.string());
}

fs::path RowSpool::first_file(const fs::path& folder) { return folder / "tokenized" / "first.jsonl"; }

bool RowSpool::is_there(const std::string& name) const {
  std::error_code error;
  return fs::exists(folder_ / name, error);
}

// A feeder on another machine, or one that does not say who it is, counts as there.
bool RowSpool::feeder_is_gone() const {
  if (!is_there("feeder")) return false;
  std::istringstream words(read_text_file(folder_ / "feeder"));
  pid_t process = 0;
  std::string host;
  if (!(words >> process) || process < 1) return false;
  if (words >> host && host != host_name()) return false;
  return ::kill(process, 0) != 0 && errno == ESRCH;
}

void RowSpool::wait_until(const std::function<bool()>& is_over, const std::string& awaited,
                          const Waiting& waiting) const {
  const Stopwatch watch;
  double logged_s = 0;
  for (;; std::this_thread::sleep_for(kSpoolPoll)) {
    const bool is_gone = feeder_is_gone();  // asked first: what it wrote last counts
    if (is_over()) return;
    if (is_gone) {
      fail(ExitCode::kNoInput,
           "dataset_spool {}: the process that feeds rows is gone, without {}: start it again, and resume "
           "from the last checkpoint",
           folder_.string(), awaited);
    }
    if (watch.seconds() - logged_s > kSpoolLogInterval_s) {
      logged_s = watch.seconds();
      log_info("dataset_spool {}: waiting for {}", folder_.string(), awaited);
    }
    if (waiting) waiting();
  }
}

void RowSpool::wait_for_first_file(const Waiting& waiting) const {
  const fs::path copy = first_file(folder_);
  const fs::path fed = folder_ / fed_name(0);
  std::error_code error;
  wait_until([&] { return fs::exists(copy, error) || is_there(fed_name(0)) || is_there("end"); },
             fed.filename().string(), waiting);
  create_folder(own_folder());
  while (!fs::exists(copy, error)) {
    try {
      write_text_file(copy, read_text_file(fed));
    } catch (const Error&) {
      // Another process, which wrote the copy, may have deleted it in the meantime.
      if (is_there(fed_name(0))) throw;
      if (!fs::exists(copy, error)) {
        fail(ExitCode::kBadData, "dataset_spool {}: the dataset is empty: expected {} beside end",
             folder_.string(), fed.filename().string());
      }
    }
  }
}

bool RowSpool::begin_reading(const std::string& reading, const Waiting& waiting) const {
  const fs::path reader = own_folder() / kReadingFile;
  std::error_code error;
  const bool was_read = fs::exists(reader, error);
  if (was_read && read_text_file(reader) == reading) return false;
  clear();
  write_text_file(reader, reading);
  if (was_read) {
    write_text_file(folder_ / "again", "");
    wait_until([&] { return !is_there("again"); }, "beginning again with the first row", waiting);
  }
  return true;
}

std::optional<fs::path> RowSpool::next_file(const Waiting& waiting) {
  std::error_code error;
  if (next_file_ > 0) fs::remove(folder_ / fed_name(next_file_ - 1), error);
  const std::string name = fed_name(next_file_);
  bool is_end = false;
  wait_until(
      [&] {
        is_end = is_there("end");  // asked first: it is written after the last file
        return is_there(name) || is_end;
      },
      name, waiting);
  if (!is_there(name)) return std::nullopt;
  ++next_file_;
  return folder_ / name;
}

void RowSpool::clear() const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(own_folder(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".tokens") != std::string::npos || name.ends_with(".end")) fs::remove(entry.path(), error);
  }
}

}  // namespace tessera
