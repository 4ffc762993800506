#include "data/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/rows/content_hash.h"
#include "data/rows/pretokenized_rows.h"
#include "data/text_rows.h"
#include "data/rows/token_cache.h"
#include "formats/input_files.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Token positions and row lengths are 32 bits wide.
constexpr int64_t kMaxRowLength = int64_t{1} << 30;

fs::path default_cache_folder() {
  // The XDG Base Directory Specification says to ignore relative paths.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && fs::path(xdg).is_absolute())
    return fs::path(xdg) / "tessera";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache" / "tessera";
  fail(ExitCode::kBadConfig,
       "no folder for the token cache: give one, or set the environment variable XDG_CACHE_HOME or HOME");
}

// The checked settings and files of a dataset.
struct Request {
  const DatasetOptions& options;
  const Tokenizer* tokenizer;
  int64_t vocab_size;
  std::vector<fs::path> files;
  std::vector<FileStamp> stamps;
  std::vector<std::string> left_out;  // skipped files, one line per folder
  bool is_pretokenized = false;
};

void check_settings(const DatasetOptions& options, int64_t vocab_size) {
  TESSERA_CHECK(1 <= vocab_size && vocab_size <= std::numeric_limits<int32_t>::max(), "vocab_size={}",
                vocab_size);
  if (options.max_length < 2 || options.max_length > kMaxRowLength) {
    fail(ExitCode::kBadConfig, "max_length: expected 2 to {}, found {}", kMaxRowLength, options.max_length);
  }
}

Request make_request(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size) {
  check_settings(options, vocab_size);
  InputFiles found = find_input_files(options.files, InputUse::kDataset);
  Request request = {options, tokenizer, vocab_size, std::move(found.files), {}, std::move(found.left_out),
                     false};
  for (const fs::path& path : request.files) {
    const InputFile file = InputFile::open(path);
    check_input_content(file, InputUse::kDataset, options.skip_invalid_utf8);
    request.stamps.push_back(file.stamp());
  }
  const auto is_pretokenized = [](const fs::path& file) {
    return input_kind(file) == InputKind::kPretokenized;
  };
  const auto pretokenized = std::find_if(request.files.begin(), request.files.end(), is_pretokenized);
  const auto text = std::find_if_not(request.files.begin(), request.files.end(), is_pretokenized);
  request.is_pretokenized = pretokenized != request.files.end();
  if (request.is_pretokenized && text != request.files.end()) {
    fail(ExitCode::kBadConfig, "{} is pre-tokenized and {} is text: a dataset is one or the other",
         pretokenized->string(), text->string());
  }
  const bool is_packed = options.packing != Packing::kNone;
  if (request.is_pretokenized && is_packed) {
    fail(ExitCode::kBadConfig,
         "{}: packing joins documents, but a pre-tokenized file has finished rows: leave packing out",
         pretokenized->string());
  }
  if (!request.is_pretokenized && tokenizer == nullptr) {
    fail(ExitCode::kBadConfig, "{}: text needs a tokenizer, but the model has no tokenizer.json",
         text->string());
  }
  if (is_packed && !tokenizer->eos_id()) {
    fail(ExitCode::kBadConfig,
         "packing separates documents by the end-of-text token, but the tokenizer has none: name eos_token "
         "in tokenizer_config.json, or train without packing");
  }
  if (is_packed && *tokenizer->eos_id() >= vocab_size) {
    fail(ExitCode::kBadConfig,
         "eos id {} is not below the model's vocab_size {}: the tokenizer belongs to another model",
         *tokenizer->eos_id(), vocab_size);
  }
  return request;
}

// Hash of everything that determines the rows.
Hash128 cache_key(const Request& request, ThreadPool& pool) {
  std::vector<FileRange> ranges;
  for (size_t i = 0; i < request.files.size(); ++i)
    ranges.push_back({request.files[i], 0, request.stamps[i].size_bytes});
  const std::vector<Hash128> hashes = hash_file_ranges(ranges, pool);
  const DatasetOptions& options = request.options;
  std::string text = fmt::format("rows {} vocab_size {} max_length {}\n", kTokenCacheVersion,
                                 request.vocab_size, options.max_length);
  if (!request.is_pretokenized) {
    text += fmt::format(
        "text_column {}:{} text_per_line {} packing {} eos {} special {} skip_invalid {} tokenizer {:x}\n",
        options.text_column.size(), options.text_column, options.text_per_line,
        static_cast<int>(options.packing), request.tokenizer->eos_id().value_or(-1),
        options.add_special_tokens, options.skip_invalid_utf8, request.tokenizer->fingerprint());
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    text += fmt::format("kind {} size {} hash {}\n", static_cast<int>(input_kind(request.files[i])),
                        request.stamps[i].size_bytes, hashes[i].hex());
  }
  return hash_text(text);
}

// The rows must come from the same contents as the key.
void check_unchanged(const Request& request) {
  for (size_t i = 0; i < request.files.size(); ++i) {
    if (InputFile::open(request.files[i]).stamp() != request.stamps[i]) {
      fail(ExitCode::kBadData,
           "{}: the file changed while it was being read: start again when it is complete",
           request.files[i].string());
    }
  }
}

std::string input_names(const Request& request) {
  const int64_t others = std::ssize(request.files) - 1;
  return request.files.front().string() + (others == 0 ? "" : " and " + format_count(others, "other file"));
}

int64_t num_found(const CacheCounts& counts) {
  return counts.num_documents + counts.num_empty_documents + counts.num_invalid_documents;
}

void build_cache(const Request& request, const fs::path& path, const Hash128& key, ThreadPool& pool,
                 const std::function<void(double)>& progress) {
  int64_t total_bytes = 0;
  for (const FileStamp& stamp : request.stamps) total_bytes += stamp.size_bytes;
  const auto report_bytes = [&](int64_t bytes) {
    if (progress && total_bytes > 0)
      progress(std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_bytes)));
  };
  const bool has_labels = request.is_pretokenized && any_has_labels(request.files);
  TokenCacheWriter writer(path, key, request.vocab_size, has_labels);
  const CacheCounts counts =
      request.is_pretokenized
          ? append_pretokenized_rows(request.files, request.vocab_size, request.options.max_length,
                                     has_labels, report_bytes, &writer)
          : append_text_rows(request.files, request.options, *request.tokenizer, request.vocab_size, pool,
                             report_bytes, &writer);
  check_unchanged(request);
  if (writer.num_rows() == 0) {
    fail(ExitCode::kBadData, "{}: the dataset is empty: {}", input_names(request),
         request.is_pretokenized ? std::string("input_ids has no values")
                                 : fmt::format("{}, {} of them without text, {} not UTF-8",
                                               format_count(num_found(counts), "document"),
                                               counts.num_empty_documents, counts.num_invalid_documents));
  }
  if (writer.num_targets() == 0) {
    fail(ExitCode::kBadData, "{}: no target in {}: {}", input_names(request),
         format_count(writer.num_rows(), "row"),
         has_labels ? "every label is -100 (the first label of a row is never a target)"
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

const char* noun_of_document(const Request& request) { return request.is_pretokenized ? "row" : "document"; }

std::vector<std::string> warnings_of(const CacheCounts& counts, const Request& request) {
  std::vector<std::string> warnings = request.left_out;
  const int64_t found = num_found(counts);
  if (counts.num_empty_documents > 0) {
    warnings.push_back(fmt::format("{}: skipped {}: no text", input_names(request),
                                   share_of(counts.num_empty_documents, found, "document")));
  }
  if (counts.num_invalid_documents > 0) {
    warnings.push_back(fmt::format("{}: skipped {}: not UTF-8", input_names(request),
                                   share_of(counts.num_invalid_documents, found, "document")));
  }
  if (counts.num_cut_documents > 0) {
    warnings.push_back(
        fmt::format("{}: cut {} to max_length {}: {} not used", input_names(request),
                    share_of(counts.num_cut_documents, counts.num_documents, noun_of_document(request)),
                    request.options.max_length, format_count(counts.num_cut_tokens, "token")));
  }
  return warnings;
}

// With one row per document everything beyond max_length is lost: most of a dataset with long documents.
void check_truncation(const CacheTrailer& cache, const Request& request) {
  const CacheCounts& counts = cache.counts;
  const int64_t num_tokens = cache.num_tokens + counts.num_cut_tokens;
  if (request.options.allow_truncation || counts.num_cut_tokens <= num_tokens / 10) return;
  const bool has_text = std::any_of(request.files.begin(), request.files.end(), [](const fs::path& file) {
    return input_kind(file) == InputKind::kText;
  });
  std::string remedy = "set ";
  if (!request.is_pretokenized)
    remedy += "--packing to join the documents and cut them into rows without loss, ";
  if (has_text && !request.options.text_per_line) remedy += "--text_per_line if every line is a document, ";
  fail(ExitCode::kBadConfig,
       "{}: {} of {} ({:.0f} %) would be dropped, as {} {} longer than max_length {} and cut{}; {}a larger "
       "--max_length, or --allow_truncation to drop them",
       input_names(request), format_count(counts.num_cut_tokens), format_count(num_tokens, "token"),
       100 * static_cast<double>(counts.num_cut_tokens) / static_cast<double>(num_tokens),
       share_of(counts.num_cut_documents, counts.num_documents, noun_of_document(request)),
       counts.num_cut_documents == 1 ? "is" : "are", request.options.max_length,
       request.is_pretokenized ? "" : " to one row", remedy);
}

}  // namespace

struct Dataset::Impl {
  TokenCache cache;
  DatasetReport report;
};

Dataset::Dataset(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Dataset::~Dataset() = default;
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;

Dataset Dataset::open(const DatasetOptions& options, const Tokenizer* tokenizer, int64_t vocab_size,
                      ThreadPool& pool, const std::function<void(double)>& progress) {
  const Request request = make_request(options, tokenizer, vocab_size);
  const Hash128 key = cache_key(request, pool);
  const fs::path folder = options.cache_folder.empty() ? default_cache_folder() : options.cache_folder;
  const fs::path path = folder / (key.hex() + ".tokens");

  std::vector<std::string> warnings;
  std::optional<TokenCache> cache = find_cache(path, key, pool, &warnings);
  bool is_hit = cache.has_value();
  if (!is_hit) {
    create_folder(folder);
    remove_abandoned_files(folder, ".tokens");
    // One process builds the file while others that need it wait; if it fails, the next one tries.
    const LockFile lock(folder / (key.hex() + ".lock"), [&] {
      if (progress) progress(0);
    });
    warnings.clear();
    cache = find_cache(path, key, pool, &warnings);
    is_hit = cache.has_value();
    if (!is_hit) {
      build_cache(request, path, key, pool, progress);
      cache = TokenCache::open(path, key, nullptr);
    }
  }
  if (progress) progress(1.0);

  auto impl = std::make_unique<Impl>(Impl{std::move(*cache), {}});
  const CacheCounts& counts = impl->cache.trailer().counts;
  check_truncation(impl->cache.trailer(), request);
  for (std::string& warning : warnings_of(counts, request)) warnings.push_back(std::move(warning));
  impl->report = {static_cast<int64_t>(request.files.size()),
                  counts.num_documents,
                  counts.num_empty_documents,
                  counts.num_invalid_documents,
                  counts.num_cut_documents,
                  counts.num_cut_tokens,
                  is_hit,
                  path,
                  std::move(warnings)};
  return Dataset(std::move(impl));
}

const DatasetReport& Dataset::report() const { return impl_->report; }
int64_t Dataset::num_rows() const { return impl_->cache.trailer().num_rows; }
int64_t Dataset::num_tokens() const { return impl_->cache.trailer().num_tokens; }
int64_t Dataset::num_targets() const { return impl_->cache.trailer().num_targets; }
int64_t Dataset::max_row_length() const { return impl_->cache.trailer().max_row_length; }
int64_t Dataset::row_length(int64_t row) const { return impl_->cache.entry(row).num_tokens; }
int64_t Dataset::row_num_targets(int64_t row) const { return impl_->cache.entry(row).num_targets; }

bool Dataset::has_rows_without_targets() const {
  for (int64_t row = 0; row < num_rows(); ++row) {
    if (row_num_targets(row) == 0) return true;
  }
  return false;
}

void Dataset::read_row(int64_t row, Row* out) const {
  impl_->cache.read_row(row, &out->input_ids, &out->labels, &out->sequence_lengths);
}

}  // namespace tessera
