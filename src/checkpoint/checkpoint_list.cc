// Which checkpoints an output folder has.
#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_reader.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Folders with a checkpoint's name, oldest first.
std::vector<CheckpointEntry> find_checkpoints(const fs::path& output_dir) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  for (fs::directory_iterator entry(output_dir, error), end; !error && entry != end; entry.increment(error)) {
    const auto step = parse_checkpoint_name(entry->path().filename().native());
    std::error_code ignored;
    if (step && entry->is_directory(ignored)) entries.push_back({entry->path(), *step, ""});
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ExitCode::kIoError, "{}: cannot list: {}", output_dir.native(), error.message());
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

CheckpointReader open_entry(const CheckpointEntry& entry) {
  CheckpointReader reader = CheckpointReader::open(entry.folder);
  if (reader.step() != entry.step) {
    fail(ExitCode::kBadData, "{}: field 'step': expected {} as the folder's name says, found {} (renamed?)",
         (entry.folder / kManifestName).native(), entry.step, reader.step());
  }
  return reader;
}

}  // namespace

std::vector<CheckpointEntry> list_checkpoints(const fs::path& output_dir) {
  std::vector<CheckpointEntry> entries = find_checkpoints(output_dir);
  for (CheckpointEntry& entry : entries) {
    try {
      open_entry(entry);
    } catch (const Error& problem) {
      entry.problem = problem.what();
    }
  }
  return entries;
}

std::optional<CheckpointReader> open_newest_checkpoint(const fs::path& output_dir) {
  const std::vector<CheckpointEntry> entries = find_checkpoints(output_dir);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    try {
      return open_entry(*entry);
    } catch (const Error& problem) {
      log_warning("{} is passed over: {}", entry->folder.native(), problem.what());
    }
  }
  return std::nullopt;
}

}  // namespace tessera
