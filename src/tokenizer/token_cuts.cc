// Where the places of a text lie among its tokens, by the bytes that each token stands for.
#include <algorithm>

#include "tokenizer/tokenizer_impl.h"

namespace tessera {

// Where each token ends in the bytes that reach the model; empty if that is not known: an unknown or an added
// token among them, or an affix.
std::vector<int64_t> Tokenizer::Impl::token_ends(std::span<const int32_t> ids) const {
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const int32_t id : ids) {
    const std::optional<int64_t> num_bytes = added.by_id(id) != nullptr ? std::nullopt : model->num_bytes(id);
    if (!num_bytes) return {};
    ends.push_back(end += *num_bytes);
  }
  return ends;
}

// Bytes that reach the model: after the normalizer and the pre-tokenizer, which treat what begins a text
// alike whatever follows.
int64_t Tokenizer::Impl::num_model_bytes(std::string_view text, bool at_start) const {
  if (text.empty()) return 0;
  NormalizedText normalized = {std::string(text), at_start};
  if (normalizer != nullptr) normalizer->apply(&normalized);
  const auto num_bytes = std::ssize(normalized.text);
  if (scanner) return num_bytes + (known_split->add_prefix_space && normalized.text[0] != ' ' ? 1 : 0);
  if (pre_tokenizer == nullptr) return num_bytes;
  Pieces pieces;
  pieces.list.push_back({normalized.text, normalized.at_start});
  pre_tokenizer->apply(&pieces);
  int64_t sum = 0;
  for (const Piece& piece : pieces.list) sum += std::ssize(piece.text);
  return sum;
}

TokenCut Tokenizer::Impl::find_cut(std::string_view text, int64_t cut, bool at_start,
                                   std::span<const int64_t> barriers, std::span<const int32_t> ids,
                                   ModelScratch* scratch_memory) const {
  const std::string_view head = text.substr(0, static_cast<size_t>(cut));
  const std::vector<int64_t> ends = token_ends(ids);
  if (!ends.empty() && ends.back() == num_model_bytes(text, at_start)) {
    const int64_t place = num_model_bytes(head, at_start);
    const auto token = std::upper_bound(ends.begin(), ends.end(), place);
    const int64_t begin = token == ends.begin() ? 0 : *std::prev(token);
    return {token - ends.begin(), begin < place};
  }
  // The tokens before the cut are those of the text before it, up to the first difference.
  std::vector<int32_t> before;
  encode_segment(head, at_start, barriers, scratch_memory, &before);
  const auto differs = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end()).first;
  return {differs - before.begin(), differs != before.end()};
}

}  // namespace tessera
