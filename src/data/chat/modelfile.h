// A Modelfile for Ollama beside an exported GGUF file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tessera {

struct Modelfile {
  std::string text;
  std::string warning;  // what of the chat template it does not have; "" if it has all
};

// FROM the file of that name, TEMPLATE for the chat template of the tokenizer's folder, PARAMETER stop for
// each token that ends an answer. Ollama's templates are Go's: one is written if it gives the texts that the
// model's own gives, which is tried with a conversation without tools; otherwise a comment says what Ollama
// does without.
Modelfile ollama_modelfile(const std::string& gguf_name, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, const std::vector<int64_t>& end_ids);

}  // namespace tessera
