// Code shared by rows that are built at once and rows that are built in the background.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/cache/content_hash.h"
#include "data/cache/row_builder.h"
#include "data/dataset.h"
#include "data/row_plan.h"
#include "data/row_tokenizer.h"
#include "platform/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// options.cache_folder or the default one. Error(kBadConfig) if there is none.
std::filesystem::path token_cache_folder(const DatasetOptions& options);
// Creates it. Error(kIoError) that says how to name another one, also if it cannot be written.
void create_token_cache_folder(const std::filesystem::path& folder);

// plan_rows(), with the settings checked against it: lengths, packing, tokenizer. Error(kBadConfig).
RowPlan checked_row_plan(std::span<const DataSource> sources, const DatasetOptions& options,
                         const Tokenizer* tokenizer, int64_t vocab_size);

// The packing that `packing` selects for rows of this plan: never kByRows.
Packing packing_of(const RowPlan& plan, Packing packing);
// Settings by which documents longer than a row are not cut, ending in a comma.
std::string ways_to_keep_tokens(const RowPlan& plan);

// Hashes of the contents of the plan's files. Errors as InputFile.
std::vector<Hash128> hash_files(const RowPlan& plan, ThreadPool& pool);

// Everything that determines the rows, as text: settings, tokenizer, chat template, and the hashes of the
// plan's files. `as_before`: as a version that dropped rows with an empty text, and kept token ids without a
// label.
std::string row_settings_text(const RowPlan& plan, const DatasetOptions& options, const Tokenizer* tokenizer,
                              int64_t vocab_size, std::span<const Hash128> hashes, bool as_before = false);

// Reads a plan's rows of .safetensors files, at most max_rows, cut to max_length or as options.source_target
// says. Errors: read_pretokenized_rows(), read_source_target_tensors(), read_masked_tensors().
DocumentCounts read_tensor_rows(const RowPlan& plan, const RowOptions& options, int64_t vocab_size,
                                int64_t max_length, int64_t max_rows, const RowSink& sink,
                                const std::function<void(int64_t)>& progress = {});

// max_length as the user gives it: of an encoder's rows, without the token that they are kept with.
int64_t shown_max_length(const DatasetOptions& options);
// The limits to which rows are cut: "max_length 1024".
std::string length_limits_text(const DatasetOptions& options);

// Whether a row with this error is left out: it is a LeftOutRow, or skip_bad_rows was given and the row is to
// blame, not the settings, which are wrong for all rows. *first_problem becomes what is wrong with it, if it
// is still empty.
bool may_skip(const std::exception_ptr& error, const RowOptions& options, std::string* first_problem);

// Adds tokenized rows to `builder`. Throws the first error that may not be skipped; *first_problem becomes
// the first one skipped, if it is still empty.
void add_rows(std::span<const TokenizedRow> rows, const RowOptions& options, int64_t vocab_size,
              RowBuilder* builder, DocumentCounts* counts, std::string* first_problem);

}  // namespace tessera
