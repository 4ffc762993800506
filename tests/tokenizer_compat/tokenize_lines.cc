// Reads JSON strings, one per line, and prints for each a line: its ids, and as a JSON string what they
// decode to. For comparison with other tokenizers.
//
//   tokenize_lines FOLDER true|false    (the latter: whether to add special tokens)
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenize_lines FOLDER true|false\n");
    return 64;
  }
  try {
    const tessera::Tokenizer tokenizer = tessera::Tokenizer::open(argv[1]);
    const bool add_special_tokens = std::string(argv[2]) == "true";
    for (std::string line; std::getline(std::cin, line);) {
      const auto text = nlohmann::json::parse(line).get<std::string>();
      const std::vector<int32_t> ids = tokenizer.encode(text, add_special_tokens);
      std::string out;
      for (const int32_t id : ids) out += std::to_string(id) + " ";
      out += nlohmann::json(tokenizer.decode(ids, /*skip_special_tokens=*/false)).dump();
      std::puts(out.c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
