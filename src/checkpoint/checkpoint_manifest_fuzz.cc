// Any text is either rejected as a manifest with Error(kBadData) or parses to a manifest that survives
// writing and reading back. The checksum at the end is fixed first, so that the code it guards is reached.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint_manifest.h"
#include "platform/crc32c.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : null true -1 0 1 2 1e5 9223372036854775807 18446744073709551615 "format": "version":
    "program_version": "step": "world_size": "model_dtype": "BF16" "I8" "run": "files": "name": "bytes":
    "crc32c": "../x" "tessera/" "tessera/a" "0123abcd" "0123ABCD" \u0000)~";

// A manifest without its last 32 bytes.
constexpr const char* kSeed =
    "{\"format\":\"tessera-checkpoint\",\"version\":1,\"program_version\":\"0\",\"step\":5,\"world_size\":1,"
    "\"model_dtype\":\"BF16\",\"run\":{\"a\":[1,2.5]},\"files\":[{\"name\":\"config.json\",\"bytes\":3},{"
    "\"name\":"
    "\"tessera/state-00001-of-00001.json\",\"bytes\":4,\"crc32c\":\"0123abcd\"}],";

void check(std::string_view input) {
  const uint32_t checksum = tessera::crc32c(0, std::as_bytes(std::span(input)));
  const std::string text = fmt::format("{}\"manifest_crc32c\": \"{:08x}\"\n}}\n", input, checksum);
  const std::string once = tessera::write_manifest(tessera::parse_manifest(text, "fuzz"));
  if (tessera::write_manifest(tessera::parse_manifest(once, "again")) != once) std::abort();
}

}  // namespace

TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData)
