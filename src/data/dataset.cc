#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/content_hash.h"
#include "data/cache/row_builder.h"
#include "data/cache/token_cache.h"
#include "data/masked_rows.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "data/streamed_rows.h"
#include "formats/input_files.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The checked settings and files of a dataset.
struct Request {
  const DatasetOptions& options;
  const Tokenizer* tokenizer;
  int64_t vocab_size;
  RowPlan plan;
};

// Hash of everything that determines the rows.
Hash128 cache_key(const Request& request, std::span<const Hash128> hashes, bool as_before = false) {
  return hash_text(row_settings_text(request.plan, request.options, request.tokenizer, request.vocab_size,
                                     hashes, as_before));
}

// Unchanged rows keep their earlier key, so that runs resume with them.
std::string fingerprint_of(const Request& request, std::span<const Hash128> hashes,
                           const CacheTrailer& trailer) {
  const bool may_differ =
      trailer.has_empty_texts() || (request.options.drops_masked_ids && trailer.counts.num_masked_rows > 0);
  return cache_key(request, hashes, !may_differ).hex();
}

// The rows must come from the same contents as the key.
void check_unchanged(const Request& request) {
  for (const SourceFile& file : request.plan.files) {
    if (InputFile::open(file.path).stamp() != file.stamp) {
      fail(ExitCode::kBadData,
           "{}: the file changed while it was being read: start again when it is complete",
           file.path.string());
    }
  }
}

std::string input_names(const Request& request) {
  const int64_t others = std::ssize(request.plan.files) - 1;
  return request.plan.files.front().path.string() +
         (others == 0 ? "" : " and " + format_count(others, "other file"));
}

int64_t num_found(const DocumentCounts& counts) {
  return counts.num_documents + counts.num_empty_documents + counts.num_invalid_documents +
         counts.num_bad_rows + counts.num_masked_rows;
}

// Appends the rows of all documents, in order. *first_problem: what is wrong with the first row skipped.
DocumentCounts append_rows(const Request& request, ThreadPool& pool,
                           const std::function<void(int64_t)>& progress, TokenCacheWriter* writer,
                           std::string* first_problem) {
  DocumentCounts counts;
  RowBuilder builder(
      request.plan.packing, request.options.max_length, writer->has_labels(),
      [writer](auto ids, auto labels, auto lengths) { writer->append_row(ids, labels, lengths); }, &counts);
  RowStream stream(request.plan, request.options, request.tokenizer, request.vocab_size, &pool);
  while (stream.next()) {
    add_rows(stream.rows(), request.options, request.vocab_size, &builder, &counts, first_problem);
    progress(stream.bytes_read());
  }
  builder.finish();
  return counts;
}

std::string emptiness(const Request& request, const DocumentCounts& counts) {
  if (request.plan.is_pretokenized) return "input_ids has no values";
  std::string text =
      fmt::format("{}, {} of them without text, {} not UTF-8", format_count(num_found(counts), "document"),
                  counts.num_empty_documents, counts.num_invalid_documents);
  if (counts.num_bad_rows > 0) text += fmt::format(", {} not usable", counts.num_bad_rows);
  return text;
}

void build_cache(const Request& request, const fs::path& path, const Hash128& key, ThreadPool& pool,
                 const std::function<void(double)>& progress, std::string* first_problem) {
  const RowPlan& plan = request.plan;
  int64_t total_bytes = 0;
  for (const SourceFile& file : plan.files) total_bytes += file.stamp.size_bytes;
  const auto report_bytes = [&](int64_t bytes) {
    if (progress && total_bytes > 0)
      progress(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_bytes)));
  };
  const MaskingRule* const masking = request.options.masking ? &*request.options.masking : nullptr;
  TokenCacheWriter writer(path, key, num_kept_ids(request.vocab_size, masking), plan.has_labels);
  const DocumentCounts counts =
      plan.is_pretokenized
          ? read_tensor_rows(
                plan, request.options, request.vocab_size, request.options.max_length,
                std::numeric_limits<int64_t>::max(),
                [&](auto ids, auto labels, auto lengths) { writer.append_row(ids, labels, lengths); },
                report_bytes)
          : append_rows(request, pool, report_bytes, &writer, first_problem);
  check_unchanged(request);
  if (writer.num_rows() == 0 && counts.num_masked_rows > 0) {
    fail(ExitCode::kBadData, "{}: no target in {}: all labels are ignored{}", input_names(request),
         format_count(counts.num_masked_rows, "row"),
         counts.num_cut_documents > 0 ? ", perhaps since rows are cut to max_length" : "");
  }
  if (writer.num_rows() == 0) {
    fail(ExitCode::kBadData, "{}: the dataset is empty: {}{}", input_names(request),
         emptiness(request, counts), first_problem->empty() ? "" : "; the first: " + *first_problem);
  }
  if (writer.num_targets() == 0) {
    const bool is_packed = plan.packing != Packing::kNone && counts.num_documents > 0;
    fail(ExitCode::kBadData, "{}: no target in {}{}: {}", input_names(request),
         format_count(is_packed ? counts.num_documents : writer.num_rows(), "row"),
         is_packed ? ", packed into " + std::to_string(writer.num_rows()) : "",
         plan.has_labels ? "every label is -100 (the first label of a row is never a target)"
                         : "a row needs two tokens to have one");
  }
  writer.commit(counts);
}

// The cache file if it exists and is intact; a damaged one is a warning.
std::optional<TokenCache> find_cache(const fs::path& path, const Hash128& key, ThreadPool& pool,
                                     std::vector<std::string>* warnings) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    return TokenCache::open(path, key, &pool);
  } catch (const Error& damage) {
    if (damage.code() != ExitCode::kBadData) throw;
    warnings->push_back(fmt::format("{}: rebuilt", damage.what()));
    return std::nullopt;
  }
}

// "3 of 5 documents", "1 of 1 row"
std::string share_of(int64_t part, int64_t whole, const char* noun) {
  return fmt::format("{} of {}", format_count(part), format_count(whole, noun));
}

const char* noun_of_document(const Request& request) {
  return request.plan.is_pretokenized ? "row" : "document";
}

// `first_problem` is "" if the rows come from the cache.
std::vector<std::string> warnings_of(const DocumentCounts& counts, const Request& request,
                                     const std::string& first_problem) {
  std::vector<std::string> warnings = request.plan.remarks;
  const int64_t found = num_found(counts);
  if (counts.num_empty_documents > 0) {
    warnings.push_back(fmt::format("{}: skipped {}: {}", input_names(request),
                                   share_of(counts.num_empty_documents, found, "document"),
                                   request.options.source_target ? "no source or no target" : "no text"));
  }
  if (counts.num_invalid_documents > 0) {
    warnings.push_back(fmt::format("{}: skipped {}: not UTF-8", input_names(request),
                                   share_of(counts.num_invalid_documents, found, "document")));
  }
  if (counts.num_bad_rows > 0) {
    warnings.push_back(
        fmt::format("{}: skipped {}{}", input_names(request), share_of(counts.num_bad_rows, found, "row"),
                    first_problem.empty() ? " that cannot be used" : "; the first: " + first_problem));
  }
  if (counts.num_masked_rows > 0) {
    warnings.push_back(fmt::format(
        "{}: skipped {}: no label that is not ignored{}", input_names(request),
        share_of(counts.num_masked_rows, found, "row"),
        counts.num_cut_documents > 0 && !request.options.source_target ? " within max_length" : ""));
  }
  if (counts.num_cut_documents > 0) {
    warnings.push_back(
        fmt::format("{}: cut {} to {}: {} not used", input_names(request),
                    share_of(counts.num_cut_documents, counts.num_documents, noun_of_document(request)),
                    length_limits_text(request.options), format_count(counts.num_cut_tokens, "token")));
  }
  return warnings;
}

// If every document is a row, everything beyond max_length is lost: most of a dataset with long documents.
// Sources are cut by the limits of their own that the user has for them, as in Transformers' examples.
void check_truncation(const CacheTrailer& cache, const Request& request) {
  const DocumentCounts& counts = cache.counts;
  const int64_t num_tokens = cache.num_tokens + counts.num_cut_tokens;
  if (request.options.allow_truncation || request.options.source_target) return;
  if (counts.num_cut_tokens <= num_tokens / 10) return;
  const bool has_text =
      std::any_of(request.plan.files.begin(), request.plan.files.end(), [](const SourceFile& file) {
        return input_kind(file.path) == InputKind::kText && !file.format->has_lines;
      });
  std::string remedy = "set ";
  if (!request.plan.is_pretokenized) remedy += ways_to_keep_tokens(request.plan);
  if (has_text && !request.options.text_per_line) remedy += "--text_per_line if every line is a document, ";
  fail(ExitCode::kBadConfig,
       "{}: {} of {} ({:.0f} %) would be dropped, as {} {} longer than max_length {} and cut{}; {}a larger "
       "--max_length, or --allow_truncation to drop them",
       input_names(request), format_count(counts.num_cut_tokens), format_count(num_tokens, "token"),
       100 * static_cast<double>(counts.num_cut_tokens) / static_cast<double>(num_tokens),
       share_of(counts.num_cut_documents, counts.num_documents, noun_of_document(request)),
       counts.num_cut_documents == 1 ? "is" : "are", shown_max_length(request.options),
       request.plan.is_pretokenized ? "" : " to one row", remedy);
}

struct CachedRows {
  std::shared_ptr<const TokenCache> cache;
  DatasetReport report;
  Packing packing;
  std::string fingerprint;  // of what the rows are made from
};

// The rows of `sources` alone.
CachedRows open_cached_rows(std::span<const DataSource> sources, const DatasetOptions& options,
                            const Tokenizer* tokenizer, int64_t vocab_size, ThreadPool& pool,
                            const std::function<void(double)>& progress) {
  const Request request = {options, tokenizer, vocab_size,
                           checked_row_plan(sources, options, tokenizer, vocab_size)};
  const std::vector<Hash128> hashes = hash_files(request.plan, pool);
  const Hash128 key = cache_key(request, hashes);
  const fs::path folder = token_cache_folder(options);
  const fs::path path = folder / (key.hex() + ".tokens");

  std::vector<std::string> warnings;
  std::string first_problem;
  std::optional<TokenCache> cache = find_cache(path, key, pool, &warnings);
  bool is_hit = cache.has_value();
  if (!is_hit) {
    create_token_cache_folder(folder);
    remove_abandoned_files(folder, ".tokens");
    // One process builds the file while others that need it wait; if it fails, the next one tries.
    const LockFile lock(folder / (key.hex() + ".lock"), [&] {
      if (progress) progress(0);
    });
    warnings.clear();
    cache = find_cache(path, key, pool, &warnings);
    is_hit = cache.has_value();
    if (!is_hit) {
      build_cache(request, path, key, pool, progress, &first_problem);
      cache = TokenCache::open(path, key, nullptr);
    }
  }
  if (progress) progress(1.0);

  check_truncation(cache->trailer(), request);
  const DocumentCounts& counts = cache->trailer().counts;
  for (std::string& warning : warnings_of(counts, request, first_problem))
    warnings.push_back(std::move(warning));
  DatasetReport report = {counts, std::ssize(request.plan.files), is_hit, path, std::move(warnings)};
  std::string fingerprint = fingerprint_of(request, hashes, cache->trailer());
  return {std::make_shared<const TokenCache>(std::move(*cache)), std::move(report), request.plan.packing,
          std::move(fingerprint)};
}

void add_report(DatasetReport report, DatasetReport* sum) {
  for (const auto& [name, count] : kStoredCounts) sum->*count += report.*count;
  sum->num_files += report.num_files;
  sum->cache_hit = sum->cache_hit && report.cache_hit;
  for (std::string& warning : report.warnings) sum->warnings.push_back(std::move(warning));
}

}  // namespace

void use_sources_and_targets(const SourceTarget& limits, const SourceTargetColumns& columns,
                             DatasetOptions* options) {
  options->source_target = limits;
  for (DataSource& source : options->sources) {
    if (!source.format.source_target) source.format.source_target = columns;
  }
  // Source and target are cut by limits of their own, token ids by none unless they are streamed.
  options->source_target->cuts_token_ids = limits.cuts_token_ids || options->streaming;
  options->max_length =
      options->streaming ? limits.max_source_length + limits.max_target_length + 1 : kMaxRowLength;
}

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
    streamed.has_sources_ = options.source_target.has_value();
    streamed.masking_ = options.masking;
    streamed.vocab_size_ = vocab_size;
    streamed.max_row_length_ = shown_max_length(options) - (streamed.has_sources_ ? 1 : 0);
    streamed.packing_ = streamed.stream_->packing();
    streamed.report_.warnings = streamed.stream_->warnings();
    return streamed;
  }
  const size_t num_parts = num_weights == 0 ? 1 : options.sources.size();
  const size_t part_sources = num_weights == 0 ? options.sources.size() : 1;
  Dataset dataset;
  dataset.has_sources_ = options.source_target.has_value();
  dataset.masking_ = options.masking;
  dataset.vocab_size_ = vocab_size;
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
    const int64_t num_extra = num_extra_tokens(*part.cache);
    num_tokens_ -= num_extra * part.num_rows;
    if (part.num_rows == all.num_rows) {
      num_tokens_ += all.num_tokens;
      num_targets_ += all.num_targets;
      max_row_length_ = std::max(max_row_length_, all.max_row_length - num_extra);
      continue;
    }
    for (int64_t row = part.begin; row < part.begin + part.num_rows; ++row) {
      const CacheIndexEntry& entry = part.cache->entry(row);
      num_tokens_ += entry.num_tokens;
      num_targets_ += entry.num_targets;
      max_row_length_ = std::max(max_row_length_, int64_t{entry.num_tokens} - num_extra);
    }
  }
}

int64_t Dataset::num_extra_tokens(const TokenCache& cache) const {
  return has_sources_ || (masking_ && cache.trailer().with_labels()) ? 1 : 0;
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
  taken.has_sources_ = has_sources_;
  taken.masking_ = masking_;
  taken.vocab_size_ = vocab_size_;
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

int64_t Dataset::row_length(int64_t row) const {
  const std::shared_ptr<const TokenCache> cache = locate(&row);
  return int64_t{cache->entry(row).num_tokens} - num_extra_tokens(*cache);
}

int64_t Dataset::num_input_ids(int64_t row) const {
  if (!has_sources_) return row_length(row);
  Row content;
  read_row(row, &content);
  return content.sequence_lengths[0];
}

int64_t Dataset::row_num_targets(int64_t row) const { return locate(&row)->entry(row).num_targets; }

void Dataset::read_row(int64_t row, Row* out) const {
  locate(&row)->read_row(row, &out->input_ids, &out->labels, &out->sequence_lengths);
  out->token_types.clear();
  if (masking_ && masking_->num_token_types > 1)
    split_token_types(vocab_size_, &out->input_ids, &out->token_types);
}

}  // namespace tessera
