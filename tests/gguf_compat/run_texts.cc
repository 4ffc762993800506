// Reads JSON strings, one per line, and prints for each a JSON object in a line: its ids, the logits after
// the last, and the likeliest continuation. In float32, for comparison with other programs.
//
//   run_texts MODEL_FOLDER NUM_NEW_TOKENS
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "inference/loaded_model.h"
#include "model/llama/llama_generator.h"
#include "ops/cpu_ops.h"
#include "tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: run_texts MODEL_FOLDER NUM_NEW_TOKENS\n");
    return 64;
  }
  try {
    constexpr int64_t kCapacity = 512;
    const int num_new = std::stoi(argv[2]);
    const tessera::Tokenizer tokenizer = tessera::Tokenizer::open(argv[1]);
    tessera::ThreadPool pool(1);
    tessera::LoadedModel loaded({argv[1], "", ""}, tessera::DType::kF32, tessera::make_cpu_ops, pool);
    tessera::LlamaGenerator generator(loaded.model(), kCapacity);
    for (std::string line; std::getline(std::cin, line);) {
      const std::vector<int32_t> ids = tokenizer.encode(nlohmann::json::parse(line).get<std::string>());
      nlohmann::json out = {{"ids", ids}, {"greedy", nlohmann::json::array()}};
      if (!ids.empty() && static_cast<int64_t>(ids.size()) + num_new < kCapacity) {
        generator.reset();
        std::span<const float> logits = generator.feed(ids);
        out["logits"] = std::vector<float>(logits.begin(), logits.end());
        for (int i = 0; i < num_new; ++i) {
          const auto id = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
          out["greedy"].push_back(id);
          logits = generator.feed(std::span(&id, 1));
        }
      }
      std::puts(out.dump().c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
