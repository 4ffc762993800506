// Converts text and JSONL files to rows of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "data/dataset.h"
#include "data/rows/token_cache.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Reads the documents of `files` in batches of bounded size, tokenizes each batch in parallel and appends its
// rows in order, so the rows do not depend on the number of threads. Memory: a batch of documents (or a
// single longer document) and its ids. `progress` gets the bytes read so far. Errors as Dataset::open; the
// first bad document is the one reported.
CacheCounts append_text_rows(std::span<const std::filesystem::path> files, const DatasetOptions& options,
                             const Tokenizer& tokenizer, int64_t vocab_size, ThreadPool& pool,
                             const std::function<void(int64_t)>& progress, TokenCacheWriter* writer);

}  // namespace tessera
