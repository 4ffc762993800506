// The wrong pre-tokenizer expression in folders of Mistral models that Transformers before 5 wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "formats/json.h"

namespace tessera {

// As Transformers 5.24: fix_mistral_regex of tokenizer_config.json puts the right expression in the place of
// the first step of the pre-tokenizer; without it, a file with the wrong one is warned about.
void follow_mistral_pattern(const JsonNode& config, const JsonNode& model, int64_t num_tokens,
                            const std::string& origin, Json* document,
                            const std::function<void(const std::string&)>& warn);

}  // namespace tessera
