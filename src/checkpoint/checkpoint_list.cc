// Lists the checkpoints in an output folder.
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
    if (step && entry->is_directory(ignored))
      entries.push_back({.folder = entry->path(), .step = *step, .problem = ""});
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ExitCode::kIoError, "{}: cannot list: {}", output_dir.native(), error.message());
  }
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

// Opens a folder and checks that the step in its name is the manifest's.
CheckpointReader open_entry(const CheckpointEntry& entry) {
  CheckpointReader reader = CheckpointReader::open(entry.folder);
  if (reader.step() != entry.step) {
    fail(ExitCode::kBadData, "{}: field 'step': expected {} as the folder's name says, found {} (renamed?)",
         (entry.folder / kManifestName).native(), entry.step, reader.step());
  }
  return reader;
}

void describe(const CheckpointReader& reader, CheckpointEntry* entry) {
  entry->step = reader.step();
  entry->world_size = reader.world_size();
  entry->bytes = reader.bytes();
  entry->model_dtype = reader.model_dtype();
}

void set_problem(const Error& problem, CheckpointEntry* entry) {
  entry->problem = problem.what();
  entry->code = problem.code();
}

}  // namespace

CheckpointEntry describe_checkpoint(const fs::path& folder) {
  CheckpointEntry entry = {.folder = folder, .problem = ""};
  try {
    const CheckpointReader reader = CheckpointReader::open(folder);
    describe(reader, &entry);
  } catch (const Error& problem) {
    set_problem(problem, &entry);
  }
  return entry;
}

bool is_deleted(const CheckpointEntry& entry) {
  std::error_code ignored;
  return fs::status(entry.folder, ignored).type() == fs::file_type::not_found;
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& output_dir) {
  std::vector<CheckpointEntry> entries = find_checkpoints(output_dir);
  for (CheckpointEntry& entry : entries) {
    try {
      describe(open_entry(entry), &entry);
    } catch (const Error& problem) {
      set_problem(problem, &entry);
    }
  }
  std::erase_if(entries,
                [](const CheckpointEntry& entry) { return !entry.problem.empty() && is_deleted(entry); });
  return entries;
}

std::optional<CheckpointReader> open_newest_checkpoint(const fs::path& output_dir, int64_t before) {
  const std::vector<CheckpointEntry> entries = find_checkpoints(output_dir);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->step >= before) continue;
    try {
      return open_entry(*entry);
    } catch (const Error& problem) {
      log_warning("{} is skipped: {}", entry->folder.native(), problem.what());
    }
  }
  return std::nullopt;
}

}  // namespace tessera
