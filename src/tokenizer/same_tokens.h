// Whether models can be merged, which their tokenizers have to allow.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// Error(kBadConfig) naming the first token in which the tokenizer of a model differs from that of the first
// model. Folders without a tokenizer pass. Files that are written differently may hold the same tokens, which
// is what the weights depend on.
void check_same_tokens(const std::vector<std::string>& models);

}  // namespace tessera
