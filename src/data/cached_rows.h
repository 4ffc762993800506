// Rows of token ids made from files once, and kept in a cache file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/cache/token_cache.h"
#include "data/dataset.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct CachedRows {
  std::shared_ptr<const TokenCache> cache;
  DatasetReport report;
  Packing packing;
  std::string fingerprint;  // of what the rows are made from
};

// The rows of `sources` alone; see Dataset::open().
CachedRows open_cached_rows(std::span<const DataSource> sources, const DatasetOptions& options,
                            const Tokenizer* tokenizer, int64_t vocab_size, ThreadPool& pool,
                            const std::function<void(double)>& progress);

}  // namespace tessera
