// Post-processors of tokenizer.json: the special tokens added before and after a text.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/json.h"

namespace tessera {

struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;

  bool operator==(const PostProcessor&) const = default;
};

// Supported: null, TemplateProcessing (its `single` template, which must hold the text once), BertProcessing,
// RobertaProcessing, ByteLevel (which changes offsets only), Sequence; any other is Error(kBadConfig) with
// its name. Ids must be below num_ids.
PostProcessor make_post_processor(const JsonNode& node, int64_t num_ids);

}  // namespace tessera
