#include "checkpoint/checkpoint_catalog.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/lora_config.h"
#include "formats/safetensors/shard_name.h"
#include "io/file.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Largest piece that writers of this format produce; a header may be larger.
constexpr int64_t kMaxPieceBytes = int64_t{64} << 20;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
// Block size for texts that are only checksummed.
constexpr int64_t kTextBlockBytes = int64_t{4} << 20;

bool is_safetensors(const std::string& name) { return name.ends_with(".safetensors"); }

bool is_model_file(const std::string& name) {
  return name == kSingleFileName || name == kAdapterFileName || parse_shard_name(name).has_value();
}

// The checkpoint with the highest number in an output folder, as a hint for a user who named a wrong path.
std::optional<fs::path> newest_in(const fs::path& output_dir) {
  std::optional<int64_t> newest;
  std::error_code error;
  for (fs::directory_iterator entry(output_dir, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!fs::exists(entry->path() / kManifestName, ignored)) continue;
    newest = std::max(newest, parse_checkpoint_name(entry->path().filename().native()));
  }
  if (!newest) return std::nullopt;
  return output_dir / checkpoint_name(*newest);
}

// A guess at why a folder without a manifest was given.
std::string no_checkpoint_hint(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / kStateFolder, ignored)) return "it is incomplete, or a part of it was removed";
  if (const auto inside = newest_in(folder)) {
    return fmt::format("the folder holds checkpoints, of which the newest is {}", inside->native());
  }
  if (fs::exists(folder / "config.json", ignored)) {
    return fmt::format(
        "it was not written by this program, which cannot read other programs' optimizer state; a new run "
        "can start from its weights: --model {}",
        folder.native());
  }
  return "it is not a checkpoint of this program";
}

CheckpointManifest read_manifest(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    if (error && error != std::errc::no_such_file_or_directory) {
      fail(ExitCode::kNoInput, "{}: cannot open the checkpoint: {}", folder.native(), error.message());
    }
    const auto beside = newest_in(folder_of(folder));
    fail(ExitCode::kNoInput, "{}: no such checkpoint: expected a folder{}", folder.native(),
         beside ? fmt::format("; the newest there is {}", beside->native()) : "");
  }
  const fs::path path = folder / kManifestName;
  if (!fs::exists(path, error) && (!error || error == std::errc::no_such_file_or_directory)) {
    fail(ExitCode::kNoInput, "{}: not found: {}", path.native(), no_checkpoint_hint(folder));
  }
  return parse_manifest(read_text_file(path, kMaxTextBytes), path.native());
}

void check_sizes(const CheckpointCatalog& catalog) {
  for (const FileRecord& file : catalog.manifest.files) {
    const fs::path path = catalog.path_of(file.name);
    std::error_code error;
    const bool is_file = fs::is_regular_file(path, error);
    const auto size = is_file ? fs::file_size(path, error) : 0;
    if (!is_file || error) {
      fail(ExitCode::kBadData, "{}: missing: expected a file of {} as manifest.json lists", path.native(),
           count_of(file.bytes, "byte"));
    }
    if (static_cast<int64_t>(size) != file.bytes) {
      fail(ExitCode::kBadData, "{}: expected {} as manifest.json lists, found {}{}", path.native(),
           count_of(file.bytes, "byte"), size,
           static_cast<int64_t>(size) < file.bytes ? " (truncated?)" : "");
    }
  }
}

// Other programs would load weights and state that are not in the manifest.
void check_nothing_else(const CheckpointCatalog& catalog) {
  std::set<std::string> known = {kManifestName};
  for (const FileRecord& file : catalog.manifest.files) known.insert(file.name);
  const auto check = [&](const fs::path& path, const std::string& name) {
    if (known.contains(name)) return;
    fail(ExitCode::kBadData, "{}: not in manifest.json: expected no such file in a checkpoint (move it away)",
         path.native());
  };
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(catalog.folder / kStateFolder, error)) {
    check(entry.path(), fmt::format("{}/{}", kStateFolder, entry.path().filename().native()));
  }
  for (const auto& entry : fs::directory_iterator(catalog.folder, error)) {
    const std::string name = entry.path().filename().native();
    if (is_safetensors(name) || name == kIndexFileName) check(entry.path(), name);
  }
}

const FileRecord* find_record(const CheckpointManifest& manifest, const std::string& name) {
  const auto at = std::find_if(manifest.files.begin(), manifest.files.end(),
                               [&](const FileRecord& file) { return file.name == name; });
  return at == manifest.files.end() ? nullptr : &*at;
}

void check_text_checksum(const fs::path& path, uint32_t expected, uint32_t found) {
  if (found == expected) return;
  fail(ExitCode::kBadData,
       "{}: expected checksum {:08x} as manifest.json lists, found {:08x} (damaged; use another checkpoint)",
       path.native(), expected, found);
}

std::string read_checked_text(const CheckpointCatalog& catalog, const std::string& name) {
  const FileRecord* record = find_record(catalog.manifest, name);
  const fs::path path = catalog.path_of(name);
  if (record == nullptr || !record->crc32c) {
    fail(ExitCode::kBadData, "{}: field 'files': expected {} with its checksum, found none",
         catalog.path_of(kManifestName).native(), name);
  }
  std::string text = read_text_file(path, kMaxTextBytes);
  check_text_checksum(path, *record->crc32c, crc32c(0, std::as_bytes(std::span(text))));
  return text;
}

// Checks the text files beside the model. Rank indexes are checked as they are read.
void check_reports(const CheckpointCatalog& catalog) {
  for (const FileRecord& record : catalog.manifest.files) {
    if (record.crc32c && !record.name.starts_with(kStateFolder))
      check_text(catalog.path_of(record.name), record);
  }
}

RankIndex read_index(const CheckpointCatalog& catalog, int64_t rank) {
  const std::string name = state_index_name(rank, catalog.manifest.world_size);
  const std::string origin = catalog.path_of(name).native();
  RankIndex index = parse_rank_index(read_checked_text(catalog, name), origin);
  const auto check = [&](const char* field, int64_t expected, int64_t found) {
    if (found != expected) {
      fail(ExitCode::kBadData, "{}: field '{}': expected {}, found {}", origin, field, expected, found);
    }
  };
  check("rank", rank, index.rank);
  check("world_size", catalog.manifest.world_size, index.world_size);
  return index;
}

// The pieces of all ranks, by file.
void collect_pieces(CheckpointCatalog& catalog, std::vector<RankIndex>& indexes) {
  std::map<std::string, size_t> by_name;
  for (const FileRecord& record : catalog.manifest.files) {
    if (record.crc32c) continue;
    by_name.emplace(record.name, catalog.files.size());
    catalog.files.push_back({record.name, record.bytes, {}, {}});
  }
  for (RankIndex& index : indexes) {
    for (RankIndex::File& file : index.files) {
      const auto at = by_name.find(file.name);
      if (at == by_name.end()) {
        fail(ExitCode::kBadData, "{}: field 'files': '{}' is not in manifest.json as a file in pieces",
             catalog.path_of(state_index_name(index.rank, index.world_size)).native(), file.name);
      }
      std::vector<PieceRecord>& pieces = catalog.files[at->second].pieces;
      pieces.insert(pieces.end(), file.pieces.begin(), file.pieces.end());
      file.pieces = {};
    }
  }
}

void check_pieces_cover(const CheckpointCatalog& catalog, CatalogFile& file) {
  std::sort(file.pieces.begin(), file.pieces.end(),
            [](const PieceRecord& a, const PieceRecord& b) { return a.offset_bytes < b.offset_bytes; });
  int64_t covered = 0;
  for (const PieceRecord& piece : file.pieces) {
    if (piece.offset_bytes != covered || piece.size_bytes > file.bytes - covered) {
      fail(ExitCode::kBadData,
           "{}: pieces of all ranks: expected one that starts at byte {} of {}, found [{}, {}) ({})",
           catalog.path_of(file.name).native(), covered, file.bytes, piece.offset_bytes,
           piece.offset_bytes + piece.size_bytes,
           piece.offset_bytes < covered   ? "overlaps the one before it"
           : piece.offset_bytes > covered ? "a hole"
                                          : "past the end");
    }
    covered += piece.size_bytes;
  }
  if (covered != file.bytes) {
    fail(ExitCode::kBadData, "{}: pieces of all ranks: expected {} bytes, found {}",
         catalog.path_of(file.name).native(), file.bytes, covered);
  }
}

// The header is the file's first piece; every other piece holds whole elements of a single tensor.
void read_header(const CheckpointCatalog& catalog, CatalogFile& file) {
  const fs::path path = catalog.path_of(file.name);
  const auto refuse = [&](const PieceRecord& piece, const char* expected) {
    fail(ExitCode::kBadData, "{}: piece [{}, {}): expected {}", path.native(), piece.offset_bytes,
         piece.offset_bytes + piece.size_bytes, expected);
  };
  if (file.pieces.empty())
    fail(ExitCode::kBadData, "{}: expected a safetensors file, found 0 bytes", path.native());
  const PieceRecord& first = file.pieces.front();
  uint64_t length = 0;
  constexpr int64_t kLengthBytes = sizeof(length);
  if (first.size_bytes < kLengthBytes || first.size_bytes > kMaxHeaderBytes) refuse(first, "the header");
  std::string header(static_cast<size_t>(first.size_bytes), '\0');
  InputFile::open(path).read_at(0, std::as_writable_bytes(std::span(header)));
  check_piece(path, first, std::as_bytes(std::span(header)));
  std::memcpy(&length, header.data(), sizeof(length));
  if (length != header.size() - sizeof(length)) refuse(first, "the length and the whole header");
  const int64_t data_begin = first.size_bytes;
  file.entries = parse_safetensors_header(std::string_view(header).substr(sizeof(length)),
                                          file.bytes - data_begin, path.native(), nullptr);
  for (SafetensorsEntry& entry : file.entries) entry.offset_bytes += data_begin;
  auto entry = file.entries.begin();
  for (auto piece = file.pieces.begin() + 1; piece != file.pieces.end(); ++piece) {
    while (entry->offset_bytes + entry->size_bytes <= piece->offset_bytes) ++entry;
    const int64_t begin = piece->offset_bytes - entry->offset_bytes;
    const int64_t element_bytes = state_bytes(entry->dtype, 1);  // of a block, where there are blocks
    if (piece->size_bytes > entry->size_bytes - begin || begin % element_bytes != 0 ||
        piece->size_bytes % element_bytes != 0 || piece->size_bytes > kMaxPieceBytes) {
      refuse(*piece, "whole elements of one tensor, at most 64 MiB");
    }
  }
}

int64_t count_elements(const SafetensorsEntry& entry) { return entry.size_bytes / dtype_bytes(entry.dtype); }

void add_model_tensors(CheckpointCatalog& catalog, size_t file_index) {
  const CatalogFile& file = catalog.files[file_index];
  for (const SafetensorsEntry& entry : file.entries) {
    const std::string path = catalog.path_of(file.name).native();
    if (entry.dtype != catalog.manifest.model_dtype) {
      fail(ExitCode::kBadData, "{}: tensor '{}': expected {} as manifest.json says, found {}", path,
           printable(entry.name), dtype_name(catalog.manifest.model_dtype), dtype_name(entry.dtype));
    }
    const auto add = [&](const std::string& name, CatalogParameter parameter) {
      if (catalog.parameters.emplace(name, std::move(parameter)).second) return;
      fail(ExitCode::kBadData, "{}: tensor '{}': expected once in the model, found in two files", path,
           printable(entry.name));
    };
    if (entry.shape.size() == 3 && entry.size_bytes > 0) {  // FileSlice
      const int64_t count = count_elements(entry) / entry.shape[0];
      for (int64_t i = 0; i < entry.shape[0]; ++i) {
        const int64_t offset_bytes = entry.offset_bytes + i * count * dtype_bytes(entry.dtype);
        add(slice_name(entry.name, i), {.shape = {entry.shape[1], entry.shape[2]},
                                        .num_elements = count,
                                        .model = {0, count, file_index, offset_bytes}});
      }
      continue;
    }
    const int64_t count = count_elements(entry);
    add(entry.name,
        {.shape = entry.shape, .num_elements = count, .model = {0, count, file_index, entry.offset_bytes}});
  }
}

// The optimizer's tensors, from their names in the state files: "exp_avg/NAME" of some parameter.
StoredParts find_parts(const CheckpointCatalog& catalog) {
  const StoredParts without_tensors(catalog.manifest.model_dtype, {});
  std::vector<StateTensor> tensors;
  for (const CatalogFile& file : catalog.files) {
    if (!is_safetensors(file.name) || is_model_file(file.name)) continue;
    for (const SafetensorsEntry& entry : file.entries) {
      const size_t slash = entry.name.find('/');
      if (slash == std::string::npos) continue;
      const std::string_view name = std::string_view(entry.name).substr(0, slash);
      const std::string_view parameter = std::string_view(entry.name).substr(slash + 1);
      if (entry.name == without_tensors.tensor_name(StoredParts::kMaster, parameter)) continue;
      if (std::ranges::find(tensors, name, &StateTensor::name) != tensors.end()) continue;
      const bool is_known = entry.dtype == DType::kBF16 || is_block_code(entry.dtype);
      tensors.push_back({name, is_known ? entry.dtype : DType::kF32});
    }
  }
  if (tensors.size() > kMaxStateTensors) {
    fail(ExitCode::kBadData, "{}: optimizer state: expected at most {} tensors for a parameter, found {}",
         (catalog.folder / kStateFolder).native(), kMaxStateTensors, tensors.size());
  }
  return {catalog.manifest.model_dtype, tensors};
}

// Whether a tensor of the optimizer has values for the first elements of a whole parameter alone: a moment of
// rows, say.
bool has_first_values(const SafetensorsEntry& entry, DType dtype, int64_t count,
                      const CatalogParameter& parameter) {
  return count == parameter.num_elements && entry.dtype == dtype && dtype == DType::kF32 &&
         entry.shape.size() == 1 && 0 < entry.shape[0] && entry.shape[0] < count;
}

// A rank's state file must have the remainders or masters of the elements that its index lists, and nothing
// but these and tensors for them. Which elements of a parameter have a value is up to the optimizer: code
// that needs a missing one reports it.
void add_state_tensors(CheckpointCatalog& catalog, const RankIndex& index) {
  const std::string name = state_file_name(index.rank, index.world_size);
  const auto file = std::find_if(catalog.files.begin(), catalog.files.end(),
                                 [&](const CatalogFile& candidate) { return candidate.name == name; });
  const std::string origin = catalog.path_of(state_index_name(index.rank, index.world_size)).native();
  const std::string path = catalog.path_of(name).native();
  if (file == catalog.files.end()) {
    fail(ExitCode::kBadData, "{}: field 'files': expected {}, found none",
         catalog.path_of(kManifestName).native(), name);
  }
  std::map<std::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : file->entries) entries.emplace(entry.name, &entry);
  size_t num_tensors = 0;
  for (const auto& [tensor, ranges] : index.elements) {
    const auto parameter = catalog.parameters.find(tensor);
    if (parameter == catalog.parameters.end() || ranges.back().end > parameter->second.num_elements) {
      fail(ExitCode::kBadData, "{}: elements of {}: expected a tensor of the model with {}, found {}", origin,
           printable(tensor), count_of(ranges.back().end, "element"),
           parameter == catalog.parameters.end() ? "none" : std::to_string(parameter->second.num_elements));
    }
    int64_t count = 0;
    for (const ElementRange& range : ranges) count += range.end - range.begin;
    parameter->second.owned.insert(parameter->second.owned.end(), ranges.begin(), ranges.end());
    parameter->second.state.resize(catalog.parts.count());
    for (size_t part = StoredParts::kMaster; part < catalog.parts.count(); ++part) {
      const auto dtype = catalog.parts.dtype(part);
      if (!dtype) continue;
      const std::string state = catalog.parts.tensor_name(part, tensor);
      const auto at = entries.find(state);
      const SafetensorsEntry* entry = at == entries.end() ? nullptr : at->second;
      const bool is_tensor = part >= StoredParts::kFirstTensor;
      if (entry == nullptr && is_tensor) continue;
      const bool has_first = is_tensor && has_first_values(*entry, *dtype, count, parameter->second);
      if (entry == nullptr ||
          (!has_first && (entry->dtype != *dtype || entry->shape != stored_shape(*dtype, count)))) {
        fail(ExitCode::kBadData, "{}: tensor '{}': expected {} [{}], found {}", path, printable(state),
             dtype_name(*dtype), fmt::join(stored_shape(*dtype, count), ", "),
             entry == nullptr
                 ? "none"
                 : fmt::format("{} [{}]", dtype_name(entry->dtype), fmt::join(entry->shape, ", ")));
      }
      ++num_tensors;
      int64_t offset = entry->offset_bytes;
      for (const ElementRange& range : ranges) {
        if (range.begin % state_block(*dtype) != 0) {
          fail(ExitCode::kBadData,
               "{}: elements of {}: expected ranges from multiples of {} on, found [{}, {})", origin,
               printable(tensor), state_block(*dtype), range.begin, range.end);
        }
        const int64_t end = has_first ? std::min(range.end, entry->shape[0]) : range.end;
        if (end <= range.begin) break;
        parameter->second.state[part].push_back(
            {range.begin, end, static_cast<size_t>(file - catalog.files.begin()), offset});
        offset += state_bytes(*dtype, end - range.begin);
      }
    }
  }
  if (num_tensors != file->entries.size()) {
    fail(ExitCode::kBadData, "{}: expected {} for the elements that {} lists, found {}", path,
         count_of(static_cast<int64_t>(num_tensors), "tensor"), origin, file->entries.size());
  }
}

void check_state_covers(const CheckpointCatalog& catalog, const std::string& name,
                        CatalogParameter& parameter) {
  for (std::vector<Extent>& extents : parameter.state) std::ranges::sort(extents, {}, &Extent::begin);
  std::ranges::sort(parameter.owned, {}, &ElementRange::begin);
  int64_t covered = 0;
  auto range = parameter.owned.begin();
  for (; range != parameter.owned.end() && range->begin == covered; ++range) covered = range->end;
  if (range == parameter.owned.end() && covered == parameter.num_elements) return;
  fail(ExitCode::kBadData,
       "{}: tensor '{}': state of all ranks: expected {} once each, found {} before a hole or an "
       "overlap",
       (catalog.folder / kStateFolder).native(), printable(name), count_of(parameter.num_elements, "element"),
       covered);
}

}  // namespace

size_t CatalogFile::piece_at(int64_t offset_bytes) const {
  const auto at = std::partition_point(pieces.begin(), pieces.end(), [&](const PieceRecord& piece) {
    return piece.offset_bytes + piece.size_bytes <= offset_bytes;
  });
  TESSERA_CHECK(at != pieces.end(), "{}: byte {}", name, offset_bytes);
  return static_cast<size_t>(at - pieces.begin());
}

CheckpointCatalog CheckpointCatalog::read(const fs::path& folder) {
  CheckpointCatalog catalog;
  catalog.folder = folder;
  catalog.manifest = read_manifest(folder);
  check_sizes(catalog);
  check_nothing_else(catalog);
  std::vector<RankIndex> indexes;
  for (int64_t rank = 0; rank < catalog.manifest.world_size; ++rank) {
    indexes.push_back(read_index(catalog, rank));
  }
  collect_pieces(catalog, indexes);
  check_reports(catalog);
  for (size_t i = 0; i < catalog.files.size(); ++i) {
    CatalogFile& file = catalog.files[i];
    check_pieces_cover(catalog, file);
    if (is_safetensors(file.name)) read_header(catalog, file);
    if (is_model_file(file.name)) add_model_tensors(catalog, i);
  }
  catalog.parts = find_parts(catalog);
  for (const RankIndex& index : indexes) add_state_tensors(catalog, index);
  for (auto& [name, parameter] : catalog.parameters) check_state_covers(catalog, name, parameter);
  return catalog;
}

void check_text(const fs::path& path, const FileRecord& record) {
  const InputFile file = InputFile::open(path);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(record.bytes, kTextBlockBytes)));
  uint32_t found = 0;
  for (int64_t begin = 0; begin < record.bytes; begin += kTextBlockBytes) {
    const std::span<std::byte> block =
        std::span(buffer).first(static_cast<size_t>(std::min(kTextBlockBytes, record.bytes - begin)));
    file.read_at(begin, block);
    found = crc32c(found, block);
  }
  check_text_checksum(path, *record.crc32c, found);
}

void check_piece(const fs::path& path, const PieceRecord& piece, std::span<const std::byte> bytes) {
  const uint32_t found = crc32c(0, bytes);
  if (found == piece.crc32c) return;
  fail(ExitCode::kBadData,
       "{}: bytes [{}, {}): expected checksum {:08x}, found {:08x} (damaged; use another checkpoint)",
       path.native(), piece.offset_bytes, piece.offset_bytes + piece.size_bytes, piece.crc32c, found);
}

}  // namespace tessera
