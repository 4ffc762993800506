// Rows of a dataset that are tokenized in the background while training uses the available ones.
#pragma once

#include <atomic>
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
#include "data/sources/row_spool.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// Every block of rows is a cache file of its own, KEY-N.tokens, and KEY.end has their number. One process of
// a machine makes them, in order, with one thread of low priority; the others wait for the files, and one of
// them takes over if it ends. Blocks that an earlier run has made are there at once.
//
// The rows of a spool are there once: their blocks are files in the spool, made at most two ahead of the
// requested one, and deleted when they are released. A run that resumes is fed all rows again, and releases
// those before its first step unwritten.
class StreamedRows final : public RowSupply {
 public:
  // Begins to tokenize. `sources` and `options` are those of Dataset::open(); KEY covers the settings and the
  // contents of the files, hashed by `pool`; above 256 MiB it covers only their sizes and their first and
  // last bytes, as reading all would take as long as tokenizing; for a spool, whose first rows this waits
  // for, it covers the settings alone. `tokenizer` must outlive this. Errors as Dataset::open().
  StreamedRows(std::span<const DataSource> sources, const DatasetOptions& options, const Tokenizer* tokenizer,
               int64_t vocab_size, ThreadPool& pool);
  ~StreamedRows() override;  // stops tokenizing

  int64_t block_rows() const override { return options_.streaming_buffer_rows; }
  // Error of the tokenizing thread.
  std::optional<int64_t> find_block(int64_t block) const override;
  // Calls options.while_waiting about every 20 ms, which may throw.
  int64_t wait_for_block(int64_t block) const override;
  std::optional<int64_t> num_rows() const override;
  void release_before(int64_t block) const override;

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
  std::filesystem::path lock_path() const;
  std::filesystem::path block_path(int64_t block) const;
  std::filesystem::path end_path() const;
  std::optional<End> find_end() const;
  bool has_blocks(int64_t count) const;
  void run(const std::stop_token& stop);
  void tokenize(const std::stop_token& stop);
  const SourceFile* next_fed_file(const std::stop_token& stop, SourceFile* file);
  void wait_until_wanted(int64_t block, const std::stop_token& stop) const;
  void check_cut(const DocumentCounts& counts, int64_t num_tokens) const;

  DatasetOptions options_;  // with its own copy of the sources
  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
  std::optional<RowSpool> spool_;
  RowPlan plan_;
  std::filesystem::path folder_;
  std::string key_;
  std::string name_;  // prefix of the files' names
  Hash128 hash_;
  bool reads_spool_ = false;                       // its thread, not another process's
  mutable std::atomic<int64_t> last_wanted_ = -1;  // block
  mutable std::atomic<int64_t> first_needed_ = 0;  // block
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const TokenCache>> open_blocks_;
  mutable std::optional<End> end_;
  std::exception_ptr error_;
  std::jthread thread_;
};

}  // namespace tessera
