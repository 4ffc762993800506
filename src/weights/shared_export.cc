#include "weights/shared_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/file.h"
#include "io/output_file.h"
#include "io/synced_folder.h"
#include "weights/saved_tensors.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A network file system may show new names to other machines late: negative lookups are cached for seconds.
constexpr std::chrono::seconds kVisibleWithin(10);
constexpr std::chrono::milliseconds kPoll(50);

}  // namespace

SharedExport::SharedExport(fs::path folder, const ModelConfig& config, const ParameterLayout& layout,
                           const ExportOptions& options)
    : folder_(std::move(folder)),
      config_(config),
      layout_(&layout),
      options_(options),
      files_(model_file_layout(layout, options)) {}

SharedExport::~SharedExport() {
  if (!created_) return;
  std::error_code ignored;
  for (const auto& file : files_.files) fs::remove(unfinished_path(*created_, file.name), ignored);
}

// Named like AtomicFile's temporary files, so that remove_abandoned_files() recognizes them.
fs::path SharedExport::unfinished_path(uint64_t number, const std::string& name) const {
  return folder_ / fmt::format(".{}.tmp-0-{}", name, number);
}

uint64_t SharedExport::create() {
  TESSERA_CHECK(!created_, "{}", folder_.native());
  create_synced_folder(folder_);
  // Random, so that a machine with a different folder at this path cannot have these files.
  std::random_device random;
  created_ = uint64_t{random()} << 32 | random();
  for (const auto& [name, layout] : files_.files) layout.create(unfinished_path(*created_, name)).close();
  return *created_;
}

void SharedExport::wait_until_visible(const fs::path& path) const {
  const auto deadline = std::chrono::steady_clock::now() + kVisibleWithin;
  while (::access(path.c_str(), F_OK) != 0) {
    if (errno != ENOENT && errno != ENOTDIR)
      fail_errno(ExitCode::kIoError, errno, fmt::format("{}: cannot check whether it exists", path.native()));
    if (std::chrono::steady_clock::now() > deadline) {
      fail(ExitCode::kBadConfig,
           "{}: expected the files that rank 0 created there, found none: choose a folder that all machines "
           "share, or run this on one machine",
           folder_.native());
    }
    std::this_thread::sleep_for(kPoll);
  }
}

int64_t SharedExport::buffer_bytes(DType save_dtype) {
  return kParameterPieceElements * (dtype_bytes(DType::kF32) + dtype_bytes(save_dtype));
}

void SharedExport::write(uint64_t number, const std::vector<ElementRange>& ranges,
                         const WeightSource& source) const {
  std::vector<OutputFile> files(files_.files.size());
  std::vector<float> values;
  std::vector<std::byte> saved;
  const int64_t element_bytes = dtype_bytes(options_.save_dtype);
  for (const ParameterPiece& piece : cut_into_pieces(owned_parts(*layout_, ranges))) {
    const Parameter& parameter = *piece.parameter;
    const SafetensorsModelLayout::Place place = files_.at(saved_name(parameter));
    OutputFile& file = files[static_cast<size_t>(place.file)];
    if (file.path().empty()) {
      const fs::path path = unfinished_path(number, files_.files[static_cast<size_t>(place.file)].name);
      wait_until_visible(path);
      file = OutputFile::open(path);
    }
    values.resize(static_cast<size_t>(piece.count));
    saved.resize(static_cast<size_t>(piece.count * element_bytes));
    source(piece.flat_begin(), values);
    round_to_saved(values, options_.save_dtype, saved.data());
    check_saved_weights(parameter, piece.begin, values, options_.save_dtype, saved.data());
    const int64_t at = place.entry->offset_bytes + (saved_begin(parameter) + piece.begin) * element_bytes;
    file.write_at(at, saved);
    file.start_writeback(at, std::ssize(saved));
  }
  for (OutputFile& file : files) {
    if (file.path().empty()) continue;
    file.sync();
    file.close();
  }
}

void SharedExport::commit() {
  TESSERA_CHECK(created_.has_value(), "{}", folder_.native());
  // The other processes' writes are on disk; only the headers, written here, need a sync.
  for (const auto& file : files_.files) {
    OutputFile header = OutputFile::open(unfinished_path(*created_, file.name));
    header.sync();
    header.close();
  }
  replace_model_files(folder_, files_, [&](size_t index) {
    const std::string& name = files_.files[index].name;
    if (::rename(unfinished_path(*created_, name).c_str(), (folder_ / name).c_str()) != 0)
      fail_write(folder_ / name, "rename", errno);
  });
  fsync_folder(folder_);
  created_.reset();
  for (const auto& [name, text] : model_folder_texts(config_, options_))
    write_text_file(folder_ / name, text);
}

}  // namespace tessera
