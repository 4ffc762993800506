// Any text is either rejected as a rank's index with Error(kBadData), or parses to an index that survives
// writing and reading back. An accepted text replaces the index in a small checkpoint, which is then read
// completely: it is rejected, or every element is read exactly once.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_manifest.h"
#include "io/file.h"
#include "model/families/families.h"
#include "platform/crc32c.h"
#include "support/checkpoint_test_support.h"
#include "support/fuzz_support.h"

namespace tessera {
namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : null -1 0 1 2 8 64 1e5 9223372036854775807 18446744073709551615 "format": "version":
    "rank": "world_size": "files": "name": "pieces": "elements": [0,␠8] [8,␠16] [0,␠8,␠"00000000"]
    "../x" "model.safetensors" "model.norm.weight" \u0000)~";

uint32_t checksum_of(const std::string& text) { return crc32c(0, std::as_bytes(std::span(text))); }

// A checkpoint of one rank, whose index can be replaced with any text while keeping all checksums valid.
class Folder {
 public:
  Folder() : layout_(parameter_layout(config_)) {
    TestCheckpoint test;
    test.output_dir = folder_;
    path_ = write_checkpoint(test, config_, layout_, zero_state(layout_));
    manifest_ = parse_manifest(read_text_file(path_ / kManifestName), "manifest");
    index_ = read_text_file(path_ / name_);
  }

  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& index() const { return index_; }

  void read_with(const std::string& index) {
    std::ofstream(path_ / name_, std::ios::binary) << index;
    for (FileRecord& file : manifest_.files) {
      if (file.name != name_) continue;
      file.bytes = std::ssize(index);
      file.crc32c = checksum_of(index);
    }
    std::ofstream(path_ / kManifestName, std::ios::binary) << write_manifest(manifest_);
    const CheckpointReader reader = CheckpointReader::open(path_);
    reader.verify(pool_);
    int64_t num_elements = 0;
    reader.load(
        layout_, AdamW::kStateTensors, everything(layout_),
        [&](StateKind, int64_t, std::span<const float> values) { num_elements += std::ssize(values); },
        pool_);
    if (num_elements != 3 * layout_.num_parameters()) std::abort();
  }

 private:
  const ModelConfig config_ = tiny_checkpoint_config();
  const ParameterLayout layout_;
  // In memory if possible.
  const std::filesystem::path folder_ =
      std::filesystem::path(std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp") /
      fmt::format("tessera-fuzz-{}", ::getpid());
  const std::string name_ = state_index_name(0, 1);
  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::string index_;
  ThreadPool pool_{1};
};

Folder& folder() {
  static Folder the_folder;
  return the_folder;
}

void check(std::string_view text) {
  const RankIndex index = parse_rank_index(text, "fuzz");
  const std::string once = write_rank_index(index);
  if (write_rank_index(parse_rank_index(once, "again")) != once) std::abort();
  folder().read_with(std::string(text));
}

}  // namespace
}  // namespace tessera

TESSERA_FUZZ(tessera::kWords, tessera::folder().index(), tessera::check, tessera::ExitCode::kBadData)
