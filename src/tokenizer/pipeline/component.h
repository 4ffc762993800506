// Normalizers, pre-tokenizers and decoders of tokenizer.json have a type, or are a Sequence of such.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "formats/json.h"

namespace tessera {

// The component itself, or all that its Sequence has under `list`; none for null.
inline std::vector<JsonNode> components_of(const JsonNode& node, const char* list) {
  if (node.is_null()) return {};
  if (node.type() != "Sequence") return {node};
  node.expect_keys({"type", list});
  std::vector<JsonNode> all;
  for (const JsonNode& part : node[list].list()) {
    if (part.is_null()) part.expected("a component with a type");
    for (JsonNode& inner : components_of(part, list)) all.push_back(std::move(inner));
  }
  return all;
}

// Builds a component with the function for its type in a table of (type, function). Error(kBadConfig): "the
// KIND "x" is not supported".
template <typename Table, typename... Args>
auto make_component(const Table& table, const char* kind, const JsonNode& node, const Args&... args) {
  const auto* known = std::ranges::find(table, node.type(), [](const auto& entry) { return entry.first; });
  if (known == std::end(table)) node.not_supported(kind, node.type());
  return known->second(node, args...);
}

}  // namespace tessera
