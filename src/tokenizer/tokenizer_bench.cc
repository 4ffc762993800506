// Speed of the tokenizer on one thread. Every text is first encoded through the reference path (PCRE2, no
// caches) and the ids compared.
//
//   tessera_tokenizer_bench [FOLDER_OF_TOKENIZER TEXT_FILE...]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/file.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

void encode(benchmark::State& state, const std::string& json, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode(text, /*add_special_tokens=*/false, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
  state.counters["tokens"] = static_cast<double>(ids.size());
}

void encode_cold(benchmark::State& state, const std::string& json, const std::string& text) {
  std::vector<int32_t> ids;
  for (auto _ : state) {
    state.PauseTiming();
    const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
    ids.clear();
    state.ResumeTiming();
    tokenizer.encode(text, /*add_special_tokens=*/false, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
}

void decode(benchmark::State& state, const std::string& json, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
  const std::vector<int32_t> ids = tokenizer.encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.decode(ids));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
}

void load(benchmark::State& state, const std::string& json) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::parse(json, "tokenizer.json").vocab_size());
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(json.size()));
}

void register_benchmarks(const std::filesystem::path& folder,
                         const std::vector<std::filesystem::path>& texts) {
  const std::string json = read_text_file(folder / "tokenizer.json");
  const std::string name = folder.filename().string();
  const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
  const Tokenizer reference = Tokenizer::parse(json, "tokenizer.json", {.reference = true});
  benchmark::RegisterBenchmark(("load/" + name).c_str(), [=](benchmark::State& state) { load(state, json); });
  for (const std::filesystem::path& path : texts) {
    const std::string text = read_text_file(path);
    if (tokenizer.encode(text) != reference.encode(text)) {
      fail(ExitCode::kInternal, "{}: the ids of {} differ from those of the reference path", name,
           path.string());
    }
    const std::string label = name + "/" + path.filename().string();
    benchmark::RegisterBenchmark(("encode/" + label).c_str(),
                                 [=](benchmark::State& state) { encode(state, json, text); });
    benchmark::RegisterBenchmark(("encode_first_time/" + label).c_str(),
                                 [=](benchmark::State& state) { encode_cold(state, json, text); });
    benchmark::RegisterBenchmark(("decode/" + label).c_str(),
                                 [=](benchmark::State& state) { decode(state, json, text); });
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  try {
    const std::filesystem::path data = TESSERA_SHARED_DIR "/data";
    if (argc > 2) {
      tessera::register_benchmarks(argv[1], {argv + 2, argv + argc});
    } else {
      for (const char* name : {"llama3", "gpt2", "llama2"}) {
        tessera::register_benchmarks(data / "tokenizers" / name, {data / "text" / "wikitext2-valid.txt"});
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
