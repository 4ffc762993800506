// Rows of a dataset that are tokenized in the background while training uses those that are there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "data/cache/token_cache.h"
#include "data/dataset.h"
#include "data/row_plan.h"
#include "data/row_supply.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Every block of rows is a cache file of its own, KEY-N.tokens, and KEY.end says how many there are. One
// process of a machine makes them, in order, with one thread of low priority; the others wait for the files,
// and one of them takes over if it ends. Blocks that an earlier run has made are there at once.
class StreamedRows final : public RowSupply {
 public:
  // Begins to tokenize. `sources` and `options` are those of Dataset::open(); KEY covers the settings and
  // the contents of the files, hashed by `pool`; of more than 256 MiB only their sizes and their first and
  // last bytes, as reading all would take as long as tokenizing. `tokenizer` must outlive this. Errors as
  // Dataset::open().
  StreamedRows(std::span<const DataSource> sources, const DatasetOptions& options, const Tokenizer* tokenizer,
               int64_t vocab_size, ThreadPool& pool);
  ~StreamedRows() override;  // stops tokenizing

  int64_t block_rows() const override { return options_.streaming_buffer_rows; }
  // Calls options.while_waiting about every 20 ms, which may throw. Error of the tokenizing thread.
  int64_t wait_for_block(int64_t block) const override;
  std::optional<int64_t> num_rows() const override;

  // The block with this row, which wait_for_block() has found; *row becomes a row of the block. Thread-safe.
  std::shared_ptr<const TokenCache> block_of(int64_t* row) const;

  const std::string& key() const { return key_; }
  Packing packing() const { return plan_.packing; }
  std::vector<std::string> warnings() const { return plan_.remarks; }

 private:
  struct End {  // of the stream
    int64_t num_blocks = 0;
    int64_t num_rows = 0;
  };
  class BlockWriter;

  std::string make_key(ThreadPool& pool) const;
  std::filesystem::path block_path(int64_t block) const;
  std::filesystem::path end_path() const;
  std::optional<End> find_end() const;
  bool has_blocks(int64_t count) const;
  void run(const std::stop_token& stop);
  void tokenize(const std::stop_token& stop);
  void check_cut(const DocumentCounts& counts, int64_t num_tokens) const;

  DatasetOptions options_;  // with its own copy of the sources
  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
  RowPlan plan_;
  std::filesystem::path folder_;
  std::string key_;
  Hash128 hash_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const TokenCache>> open_blocks_;
  mutable std::optional<End> end_;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace tessera
