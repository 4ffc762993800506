// Any text is either rejected with an Error or gives an object that reads back the same from its JSON, which
// is also Hjson.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/fuzz_support.h"
#include "formats/hjson.h"

namespace {

constexpr std::array kWords = {
    "{",    "}",    "[",      "]",     ",",     ":",      "\n",    " ",
    "#",    "//",   "/*",     "*/",    "'",     "\"",     "'''",   "\\",
    "key",  "key:", "\"k\":", "'k':",  "true",  "false",  "null",  "auto",
    "-",    "0",    "01",     "1e9",   "1e999", "-0.5",   "5e-05", "9223372036854775808",
    "\\u0", "\\n",  "\\ud8",  "\\u00", "\t",    "{a: {}", "[[",    "tpls{"};

// In the style of DeepSpeed's samples; the mutations start from it.
constexpr const char* kSeed =
    "{\n  // batch\n  train_batch_size: 8,\n  \"optimizer\": {\"type\": 'AdamW' # name\n"
    "    params: {lr: 5e-05, betas: [0.9, 0.999,]}}\n  /* off */ fp16: {enabled: false}\n  note: no "
    "quotes\n}";

void check_reads_back(const tessera::Json& value) {
  if (!value.is_object()) std::abort();
  if (tessera::parse_hjson(value.dump(), "dump") != value) std::abort();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_text(data, size, max_size, seed, kWords, kSeed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::Json value;
  try {
    value = tessera::parse_hjson({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, tessera::ExitCode::kBadConfig);
    return 0;
  }
  check_reads_back(value);
  return 0;
}
