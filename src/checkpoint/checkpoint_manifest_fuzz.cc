// Any text is either rejected as a manifest with Error(kBadData) or parses to a manifest that survives
// writing and reading back. The checksum at the end is fixed first, so that the code it guards is reached.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "base/error.h"
#include "base/fuzz_support.h"
#include "checkpoint/checkpoint_manifest.h"
#include "platform/crc32c.h"

namespace {

constexpr std::array kWords = {"{",
                               "}",
                               "[",
                               "]",
                               ",",
                               ":",
                               "null",
                               "true",
                               "-1",
                               "0",
                               "1",
                               "2",
                               "1e5",
                               "9223372036854775807",
                               "18446744073709551615",
                               "\"format\":",
                               "\"version\":",
                               "\"program_version\":",
                               "\"step\":",
                               "\"world_size\":",
                               "\"model_dtype\":",
                               "\"BF16\"",
                               "\"I8\"",
                               "\"run\":",
                               "\"files\":",
                               "\"name\":",
                               "\"bytes\":",
                               "\"crc32c\":",
                               "\"../x\"",
                               "\"tessera/\"",
                               "\"tessera/a\"",
                               "\"0123abcd\"",
                               "\"0123ABCD\"",
                               "\\u0000"};

// A manifest without its last 32 bytes.
constexpr const char* kSeed =
    "{\"format\":\"tessera-checkpoint\",\"version\":1,\"program_version\":\"0\",\"step\":5,\"world_size\":1,"
    "\"model_dtype\":\"BF16\",\"run\":{\"a\":[1,2.5]},\"files\":[{\"name\":\"config.json\",\"bytes\":3},{"
    "\"name\":"
    "\"tessera/state-00001-of-00001.json\",\"bytes\":4,\"crc32c\":\"0123abcd\"}],";

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, kWords, kSeed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  const uint32_t checksum = tessera::crc32c(0, std::as_bytes(std::span(text)));
  text += fmt::format("\"manifest_crc32c\": \"{:08x}\"\n}}\n", checksum);
  try {
    const std::string once = tessera::write_manifest(tessera::parse_manifest(text, "fuzz"));
    if (tessera::write_manifest(tessera::parse_manifest(once, "again")) != once) std::abort();
  } catch (const tessera::Error& error) {
    TESSERA_CHECK(!std::string_view(error.what()).starts_with("again"), "{}", error.what());
    tessera::check_refusal(error, tessera::ExitCode::kBadData);
  }
  return 0;
}
