// Any text is either rejected with an Error or gives an object that reads back the same from its JSON, which
// is also Hjson.
#include <cstdlib>

#include "base/error.h"
#include "formats/hjson.h"
#include "support/fuzz_support.h"

namespace {

constexpr const char* kWords =
    R"~({ } [ ] , : ␤ ␠ # // /* */ ' " ''' \ key key: "k": 'k': true false null auto - 0 01 1e9 1e999 -0.5
    5e-05 9223372036854775808 \u0 \n \ud8 \u00 {a:␠{} [[ tpls{)~"
    " \t";

// In the style of DeepSpeed's samples; the mutations start from it.
constexpr const char* kSeed =
    "{\n  // batch\n  train_batch_size: 8,\n  \"optimizer\": {\"type\": 'AdamW' # name\n"
    "    params: {lr: 5e-05, betas: [0.9, 0.999,]}}\n  /* off */ fp16: {enabled: false}\n  note: no "
    "quotes\n}";

void check(std::string_view text) {
  const tessera::Json value = tessera::parse_hjson(text, "fuzz");
  if (!value.is_object() || tessera::parse_hjson(value.dump(), "again") != value) std::abort();
}

}  // namespace

TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadConfig)
