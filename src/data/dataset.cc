#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/content_hash.h"
#include "data/cache/token_cache.h"
#include "data/cached_rows.h"
#include "data/streamed_rows.h"

namespace tessera {
namespace {

void add_report(DatasetReport report, DatasetReport* sum) {
  for (const auto& [name, count] : kStoredCounts) sum->*count += report.*count;
  sum->num_files += report.num_files;
  sum->cache_hit = sum->cache_hit && report.cache_hit;
  for (std::string& warning : report.warnings) sum->warnings.push_back(std::move(warning));
}

}  // namespace

void use_evaluation_splits(DatasetOptions* options) {
  for (DataSource& source : options->sources) source.splits = {"validation", "test"};
}

Dataset Dataset::open(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
                      ThreadPool& pool, const std::function<void(double)>& progress) {
  const auto num_weights = std::count_if(options.sources.begin(), options.sources.end(),
                                         [](const DataSource& source) { return source.weight.has_value(); });
  if (num_weights != 0 && num_weights != std::ssize(options.sources)) {
    fail(ExitCode::kBadConfig,
         "dataset: expected a weight (NAME:0.7) for all of {} sources or for none, found {}",
         options.sources.size(), num_weights);
  }
  if (options.streaming) {
    if (num_weights != 0) {
      fail(ExitCode::kBadConfig,
           "dataset: --streaming reads one source after another, so sources cannot have weights");
    }
    Dataset streamed;
    streamed.stream_ = std::make_shared<StreamedRows>(options.sources, options, tokenizer, vocab_size, pool);
    streamed.max_row_length_ = options.max_length;
    streamed.packing_ = streamed.stream_->packing();
    streamed.report_.warnings = streamed.stream_->warnings();
    return streamed;
  }
  const size_t num_parts = num_weights == 0 ? 1 : options.sources.size();
  const size_t part_sources = num_weights == 0 ? options.sources.size() : 1;
  Dataset dataset;
  for (size_t i = 0; i < num_parts; ++i) {
    const auto part_progress = [&](double fraction) {
      if (progress) progress((static_cast<double>(i) + fraction) / static_cast<double>(num_parts));
    };
    const auto sources = std::span(options.sources).subspan(i * part_sources, part_sources);
    CachedRows rows = open_cached_rows(sources, options, tokenizer, vocab_size, pool, part_progress);
    const int64_t num_rows = rows.cache->trailer().num_rows;
    dataset.parts_.push_back({std::move(rows.cache), std::move(rows.fingerprint), 0, num_rows});
    dataset.mixture_.push_back({num_rows, num_weights == 0 ? 1.0 : *sources[0].weight});
    if (i == 0) {
      dataset.packing_ = rows.packing;
      dataset.report_ = std::move(rows.report);
    } else {
      add_report(std::move(rows.report), &dataset.report_);
    }
  }
  dataset.count();
  return dataset;
}

// Sums over the rows of all parts.
void Dataset::count() {
  num_rows_ = 0;
  num_tokens_ = 0;
  num_targets_ = 0;
  max_row_length_ = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    mixture_[i].num_rows = part.num_rows;
    num_rows_ += part.num_rows;
    const CacheTrailer& all = part.cache->trailer();
    if (part.num_rows == all.num_rows) {
      num_tokens_ += all.num_tokens;
      num_targets_ += all.num_targets;
      max_row_length_ = std::max(max_row_length_, all.max_row_length);
      continue;
    }
    for (int64_t row = part.begin; row < part.begin + part.num_rows; ++row) {
      const CacheIndexEntry& entry = part.cache->entry(row);
      num_tokens_ += entry.num_tokens;
      num_targets_ += entry.num_targets;
      max_row_length_ = std::max(max_row_length_, int64_t{entry.num_tokens});
    }
  }
}

Dataset Dataset::split_off(double percent) {
  TESSERA_CHECK(0 < percent && percent < 100, "percent={}", percent);
  if (stream_) {
    fail(ExitCode::kBadConfig,
         "validation_split_percentage: --streaming does not know the number of rows: give an eval_dataset");
  }
  Dataset taken;
  taken.mixture_ = mixture_;
  taken.report_ = report_;
  taken.packing_ = packing_;
  taken.report_.warnings.clear();
  for (Part& part : parts_) {
    if (part.num_rows < 2)
      fail(ExitCode::kBadData, "validation_split_percentage: expected at least 2 rows to split, found 1");
    const auto share = static_cast<int64_t>(std::llround(static_cast<double>(part.num_rows) * percent / 100));
    const int64_t count = std::clamp<int64_t>(share, 1, part.num_rows - 1);
    taken.parts_.push_back({part.cache, part.name, part.begin, count});
    part.begin += count;
    part.num_rows -= count;
  }
  taken.count();
  count();
  return taken;
}

const RowSupply* Dataset::supply() const { return stream_.get(); }

std::string Dataset::fingerprint() const {
  if (stream_) return stream_->key();
  const Part& first = parts_.front();
  const bool is_whole_cache = parts_.size() == 1 && first.num_rows == first.cache->trailer().num_rows;
  if (is_whole_cache) return first.name;
  std::string text;
  for (size_t i = 0; i < parts_.size(); ++i) {
    text +=
        fmt::format("{} {} {} {}\n", parts_[i].name, parts_[i].begin, parts_[i].num_rows, mixture_[i].weight);
  }
  return hash_text(text).hex();
}

std::shared_ptr<const TokenCache> Dataset::locate(int64_t* row) const {
  if (stream_) return stream_->block_of(row);
  TESSERA_CHECK(0 <= *row && *row < num_rows_, "row={} of {}", *row, num_rows_);
  auto part = parts_.begin();
  for (; *row >= part->num_rows; ++part) *row -= part->num_rows;
  *row += part->begin;
  return part->cache;
}

int64_t Dataset::row_length(int64_t row) const { return locate(&row)->entry(row).num_tokens; }

int64_t Dataset::row_num_targets(int64_t row) const { return locate(&row)->entry(row).num_targets; }

void Dataset::read_row(int64_t row, Row* out) const {
  locate(&row)->read_row(row, &out->input_ids, &out->labels, &out->sequence_lengths);
}

}  // namespace tessera
