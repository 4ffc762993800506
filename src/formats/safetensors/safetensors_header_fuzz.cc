// The first byte sets how many bytes of data the file claims to have; the rest is the header. Any header is
// either rejected with an Error or gives entries that cover the data exactly.
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "formats/safetensors/safetensors.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : "dtype": "shape": "data_offsets": "BF16" "F32" "I8" "F4" "BOOL" "a":{ "b":{
    "__metadata__":{ [0,4] [4,8] [0,0] [2] [] [1,0] 9223372036854775807 18446744073709551615 -1 1e5 null
    true \u0000 \ud800)~";

// A valid header of two tensors and metadata for 8 bytes of data; the mutations start from it.
constexpr const char* kSeed =
    "\x08{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"
    ","
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[4,8]}}";

void check(std::string_view input) {
  const int64_t data_bytes = static_cast<unsigned char>(input[0]);
  std::map<std::string, std::string> metadata;
  int64_t covered = 0;
  for (const auto& entry :
       tessera::parse_safetensors_header(input.substr(1), data_bytes, "fuzz", &metadata)) {
    if (entry.offset_bytes != covered || entry.size_bytes < 0) std::abort();
    covered += entry.size_bytes;
  }
  if (covered != data_bytes) std::abort();
}

}  // namespace

TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData)
