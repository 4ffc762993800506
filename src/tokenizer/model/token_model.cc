#include "tokenizer/model/token_model.h"

#include <span>

namespace tessera {

void TokenModel::encode_word(std::string_view word, int64_t readable_bytes, ModelScratch* scratch,
                             std::vector<int32_t>* ids) const {
  if (word.size() > static_cast<size_t>(WordCache::kMaxWordBytes) || word.empty())
    return encode_word_uncached(word, scratch, ids);
  const WordCache::Key key = WordCache::make_key(word, readable_bytes);
  if (const WordCache::Entry* entry = scratch->cache.find(key)) {
    ids->insert(ids->end(), entry->ids.data(), entry->ids.data() + entry->num_ids);
    return;
  }
  const size_t former_size = ids->size();
  encode_word_uncached(word, scratch, ids);
  scratch->cache.insert(key, std::span<const int32_t>(*ids).subspan(former_size));
}

}  // namespace tessera
