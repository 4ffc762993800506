// Rank 0's work for all ranks: creates the unfinished folder and renames it once all have written.
#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_manifest.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/checkpoint_writer.h"
#include "io/file.h"
#include "io/output_file.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot rename to {}", from.native(), to.native()));
  }
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ExitCode::kIoError, "{}: cannot remove: {}", path.native(), error.message());
}

int64_t size_of(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) fail(ExitCode::kIoError, "{}: cannot stat: {}", path.native(), error.message());
  return static_cast<int64_t>(size);
}

FileRecord write_text(const fs::path& folder, const std::string& name, const std::string& text) {
  write_synced_file(folder / name, text);
  return {name, std::ssize(text), crc32c(0, std::as_bytes(std::span(text)))};
}

// A checkpoint that cannot be read back must not replace anything. The disk is to blame, whatever the reader
// says.
template <typename Read>
auto read_back(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kInternal) throw;
    fail(ExitCode::kIoError, "the checkpoint just written does not read back: {}", error.what());
  }
}

// Lists all files: those that the rank indexes list in pieces, the indexes, and the texts written here.
CheckpointManifest make_manifest(const CheckpointPlan& plan, const RunRecord& record) {
  const fs::path folder = plan.unfinished_folder();
  CheckpointManifest manifest;
  manifest.program_version = TESSERA_VERSION;
  manifest.step = record.step;
  manifest.world_size = plan.world_size;
  manifest.model_dtype = plan.export_options.save_dtype;
  manifest.run_json = record.run_json;
  std::vector<FileRecord> indexes;
  std::map<std::string, int64_t> listed;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    const std::string name = state_index_name(rank, plan.world_size);
    std::string text;
    const RankIndex index = read_back([&] {
      text = read_text_file(folder / name);
      return parse_rank_index(text, (folder / name).native());
    });
    indexes.push_back({name, std::ssize(text), crc32c(0, std::as_bytes(std::span(text)))});
    for (const RankIndex::File& file : index.files) {
      if (listed.contains(file.name)) continue;
      listed.emplace(file.name, size_of(folder / file.name));
    }
  }
  for (const auto& [name, size_bytes] : listed) manifest.files.push_back({name, size_bytes, std::nullopt});
  manifest.files.insert(manifest.files.end(), indexes.begin(), indexes.end());
  manifest.files.push_back(write_text(folder, kTrainerStateName, record.trainer_state_json));
  manifest.files.push_back(write_text(folder, "training_args.json", record.training_args_json));
  return manifest;
}

// The new folder takes the name of the old one, which moves to previous-N, atomically if the file system
// supports it, so that there is always one under that name.
void replace_checkpoint(const fs::path& unfinished, const fs::path& folder) {
  const fs::path previous = make_previous_folder(folder_of(folder));
  const fs::path aside = previous / folder.filename();
  rename_path(unfinished, aside);
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    const fs::path waiting = previous / ("new-" + folder.filename().native());
    rename_path(aside, waiting);
    rename_path(folder, aside);
    rename_path(waiting, folder);
  }
  fsync_folder(previous);
  log_info("{}: replaced; the previous one is now {}", folder.native(), aside.native());
}

// The checkpoint exists since the rename, so a failure to update `latest` is only a warning.
void point_latest(const fs::path& folder) {
  try {
    write_text_file(folder_of(folder) / kLatestName, folder.filename().native() + "\n");
  } catch (const Error& error) {
    log_warning("{} is complete, but `latest` does not point to it: {}", folder.native(), error.what());
  }
}

}  // namespace

fs::path CheckpointPlan::unfinished_folder() const {
  return folder_of(folder) / fmt::format("{}{}", kUnfinishedPrefix, folder.filename().native());
}

void create_checkpoint(const CheckpointPlan& plan) {
  const fs::path folder = plan.unfinished_folder();
  remove_tree(folder);
  try {
    create_folder(folder / kStateFolder);
    for (const auto& [name, layout] : model_file_layout(*plan.layout, plan.export_options).files) {
      layout.create(folder / name).close();
    }
  } catch (...) {
    abandon_checkpoint(plan);
    throw;
  }
}

void commit_checkpoint(const CheckpointPlan& plan, const RunRecord& record) {
  const fs::path unfinished = plan.unfinished_folder();
  try {
    const CheckpointManifest manifest = make_manifest(plan, record);
    write_synced_file(unfinished / kManifestName, write_manifest(manifest));
    read_back([&] { return CheckpointReader::open(unfinished); });
    fsync_folder(unfinished / kStateFolder);
    fsync_folder(unfinished);
    std::error_code error;
    if (fs::exists(fs::symlink_status(plan.folder, error))) {
      replace_checkpoint(unfinished, plan.folder);
    } else {
      rename_path(unfinished, plan.folder);
    }
  } catch (...) {
    abandon_checkpoint(plan);
    throw;
  }
  fsync_folder(folder_of(plan.folder));
  point_latest(plan.folder);
}

void abandon_checkpoint(const CheckpointPlan& plan) noexcept {
  std::error_code ignored;
  fs::remove_all(plan.unfinished_folder(), ignored);
}

}  // namespace tessera
