#include "data/row_building.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "data/cache/pretokenized_rows.h"
#include "data/cache/token_cache.h"
#include "data/masked_rows.h"
#include "data/row_stream.h"
#include "data/source_target_rows.h"
#include "formats/input_files.h"
#include "io/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Part of the cache key of conversations; increment it when the same rows give other messages.
constexpr int kMessagesVersion = 5;

bool has_text_files(const RowPlan& plan) {
  return std::ranges::any_of(
      plan.files, [](const SourceFile& file) { return input_kind(file.path) == InputKind::kText; });
}

void check_settings(const DatasetOptions& options, int64_t vocab_size) {
  TESSERA_CHECK(1 <= vocab_size && vocab_size <= std::numeric_limits<int32_t>::max(), "vocab_size={}",
                vocab_size);
  if (options.max_length < 2 || options.max_length > kMaxRowLength) {
    fail(ExitCode::kBadConfig, "max_length: expected 2 to {}, found {}", kMaxRowLength, options.max_length);
  }
  if (options.max_length == kMaxRowLength && (options.packing != Packing::kNone || options.streaming)) {
    fail(ExitCode::kBadConfig, "max_length none: {}: give a number",
         options.streaming ? "streaming has to know how long rows may be"
                           : "packing fills rows up to max_length");
  }
}

// What rows of an encoder cannot be.
void check_masked_plan(const RowPlan& plan, const MaskingRule& rule) {
  const std::string first = plan.files.front().path.string();
  if (plan.has_shape(RowShape::kTokens) && plan.has_shape(RowShape::kText)) {
    fail(ExitCode::kBadConfig,
         "{}: some files have token ids and others texts: a dataset for an encoder has one of them, unless "
         "its "
         "sources have weights",
         first);
  }
  if (plan.has_shape(RowShape::kTokens) && plan.packing != Packing::kNone) {
    fail(ExitCode::kBadConfig,
         "{}: packing joins texts, but the rows are token ids, which are rows already: leave packing out",
         first);
  }
  if (plan.needs_tokenizer()) check_can_mask(rule, first);
}

// Settings that only Axolotl's data sets have.
std::string target_settings_text(const RowFormat& format) {
  std::string text;
  for (const auto& [ours, theirs] : format.tags.properties)
    text += fmt::format(" property {}:{}={}:{}", ours.size(), ours, theirs.size(), theirs);
  if (format.prompt) text += " " + format.prompt->text();
  if (format.turns) text += " turns " + format.turns->text();
  if (!format.variables.empty()) text += " variables " + format.variables;
  return text;
}

}  // namespace

RowPlan checked_row_plan(std::span<const DataSource> sources, const DatasetOptions& options,
                         const Tokenizer* tokenizer, int64_t vocab_size) {
  check_settings(options, vocab_size);
  RowPlan plan = plan_rows(sources, options);
  const std::string& first = plan.files.front().path.string();
  plan.packing = packing_of(plan, options.packing);
  const bool is_packed = plan.packing != Packing::kNone;
  if (plan.is_pretokenized && is_packed) {
    fail(ExitCode::kBadConfig,
         "{}: packing joins documents, but a pre-tokenized file has finished rows: leave packing out", first);
  }
  const bool needs_tokenizer = plan.needs_tokenizer();
  if (options.masking) check_masked_plan(plan, *options.masking);
  if (needs_tokenizer && tokenizer == nullptr) {
    if (!options.chat_folder.empty()) Tokenizer::open(options.chat_folder);  // says what is missing
    fail(ExitCode::kBadConfig, "{}: text needs a tokenizer, but the model has no tokenizer.json", first);
  }
  if (options.masking) return plan;  // no text needs an end
  const bool has_text = plan.has_shape(RowShape::kText) || plan.has_shape(RowShape::kPromptCompletion) ||
                        plan.has_shape(RowShape::kPromptText);
  if (has_text && needs_tokenizer && !tokenizer->eos_id()) {
    plan.remarks.push_back(
        "the tokenizer has no end-of-text token, so no text ends in one: name eos_token in "
        "tokenizer_config.json if the model is to learn where texts end");
  }
  if (is_packed && needs_tokenizer && !tokenizer->eos_id()) {
    fail(ExitCode::kBadConfig,
         "packing separates documents by the end-of-text token, but the tokenizer has none: name eos_token "
         "in tokenizer_config.json, or train without packing");
  }
  if ((is_packed || has_text) && needs_tokenizer && tokenizer->eos_id().value_or(0) >= vocab_size) {
    fail(ExitCode::kBadConfig,
         "eos id {} is not below the model's vocab_size {}: the tokenizer belongs to another model",
         *tokenizer->eos_id(), vocab_size);
  }
  return plan;
}

Packing packing_of(const RowPlan& plan, Packing packing) {
  if (packing != Packing::kByRows) return packing;
  return has_text_files(plan) ? Packing::kIsolated : Packing::kBestFit;
}

std::string ways_to_keep_tokens(const RowPlan& plan) {
  if (plan.packing == Packing::kNone && has_text_files(plan))
    return "--packing to join the documents and cut them into rows without loss, ";
  return fmt::format("{}--packing_strategy bfd_split to pack the documents in pieces without loss, ",
                     plan.packing == Packing::kNone ? "--packing " : "");
}

fs::path token_cache_folder(const DatasetOptions& options) {
  if (!options.cache_folder.empty()) return options.cache_folder;
  // The XDG Base Directory Specification says to ignore relative paths.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && fs::path(xdg).is_absolute())
    return fs::path(xdg) / "tessera";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0')
    return fs::path(home) / ".cache" / "tessera";
  fail(ExitCode::kBadConfig,
       "no folder for the token cache: set --cache_dir, or the environment variable XDG_CACHE_HOME or HOME");
}

void create_token_cache_folder(const fs::path& folder) {
  try {
    create_folder(folder);
    if (::access(folder.c_str(), W_OK) != 0)
      fail(ExitCode::kIoError, "{}: {}", folder.native(), std::strerror(errno));
  } catch (const Error& error) {
    fail(error.code(),
         "{}: tokenized rows are kept there; --cache_dir or XDG_CACHE_HOME names another folder",
         error.what());
  }
}

std::vector<Hash128> hash_files(const RowPlan& plan, ThreadPool& pool) {
  std::vector<FileRange> ranges;
  for (const SourceFile& file : plan.files) ranges.push_back({file.path, 0, file.stamp.size_bytes});
  return hash_file_ranges(ranges, pool);
}

std::string row_settings_text(const RowPlan& plan, const DatasetOptions& options, const Tokenizer* tokenizer,
                              int64_t vocab_size, std::span<const Hash128> hashes, bool as_before) {
  const auto is_text_file = [](const SourceFile& file) { return input_kind(file.path) == InputKind::kText; };
  const bool has_lines =
      options.text_per_line || std::any_of(plan.files.begin(), plan.files.end(), [&](const SourceFile& file) {
        return is_text_file(file) && file.format->has_lines;
      });
  std::string text =
      fmt::format("rows {} vocab_size {} max_length {} packing {} skip_bad {}\n", kTokenCacheVersion,
                  vocab_size, options.max_length, static_cast<int>(plan.packing), options.skip_bad_rows);
  if (options.source_target) {
    const SourceTarget& pair = *options.source_target;
    text +=
        fmt::format("source {} target {} start {} pad {} cuts ids {} prefix {}:{}\n", pair.max_source_length,
                    pair.max_target_length, pair.decoder_start_token_id, pair.pad_token_id,
                    pair.cuts_token_ids, pair.source_prefix.size(), pair.source_prefix);
  }
  if (options.masking) {
    text += fmt::format("masked {} with {}\n", options.masking->max_length,
                        options.masking->mask_id ? "a mask token" : "labels alone");
    if (options.masking->num_token_types > 1)
      text += fmt::format("token types {}\n", options.masking->num_token_types);
  }
  if (options.excess_length != ExcessLength::kTruncate)
    text += fmt::format("excess {}\n", static_cast<int>(options.excess_length));
  if (plan.needs_tokenizer()) {
    text += fmt::format("text_per_line {} eos {} special {} skip_invalid {} tokenizer {:x}\n", has_lines,
                        tokenizer->eos_id().value_or(-1), options.add_special_tokens,
                        options.skip_invalid_utf8, tokenizer->fingerprint());
  }
  if (plan.is_pretokenized || plan.has_shape(RowShape::kTokens))
    text += fmt::format("prompt {}{}{}\n", options.train_on_prompt,
                        plan.ignores_completion_mask ? " without completion_mask" : "",
                        options.drops_masked_ids && !as_before ? " unmasked" : "");
  if (plan.has_chats()) {
    const auto chat = load_chat_template(plan, options, tokenizer);
    text += fmt::format("messages {} prompt {} assistant {} special {} template {:x}\n", kMessagesVersion,
                        options.train_on_prompt, options.assistant_only_loss, options.parse_special_tokens,
                        chat == nullptr ? 0 : chat->fingerprint());
  }
  for (size_t i = 0; i < hashes.size(); ++i) {
    const SourceFile& file = plan.files[i];
    text += fmt::format("kind {} size {} hash {} shape {}", static_cast<int>(input_kind(file.path)),
                        file.stamp.size_bytes, hashes[i].hex(), row_shape_name(file.shape));
    if (has_lines && !options.text_per_line && is_text_file(file) && !file.format->has_lines)
      text += " whole";
    // Rows with empty texts were left out before.
    const bool keeps_empty =
        file.shape == RowShape::kText && !is_text_file(file) && !file.format->drops_empty_text;
    if (keeps_empty && !as_before) text += " keeps empty";
    if (file.format->text_column != "text") text += fmt::format(" text {}", file.format->text_column);
    for (const auto& [field, column] : file.format->columns)
      text += fmt::format(" {}:{}={}:{}", field.size(), field, column.size(), column);
    const MessageTags& tags = file.format->tags;
    if (tags != MessageTags())
      text +=
          fmt::format(" tags {}:{} {}:{}", tags.role.size(), tags.role, tags.content.size(), tags.content);
    for (const auto& [from, role] : tags.roles) text += fmt::format(" {}:{}={}", from.size(), from, role);
    text += target_settings_text(*file.format);
    if (file.shape == RowShape::kPromptText || file.shape == RowShape::kSegments)
      text += fmt::format(" prompt {}", options.train_on_prompt);
    if (file.format->rows || options.held_out)
      text += fmt::format(" rows {} to {}", file.begin_row, file.end_row);
    if (file.format->pairs) text += " pairs " + file.format->pairs->text();
    if (const auto& names = file.format->source_target; names && *names != SourceTargetColumns()) {
      for (const std::string* name :
           {&names->source, &names->target, &names->source_lang, &names->target_lang})
        text += fmt::format(" {}:{}", name->size(), *name);
    }
    text += '\n';
  }
  return text;
}

DocumentCounts read_tensor_rows(const RowPlan& plan, const RowOptions& options, int64_t vocab_size,
                                int64_t max_length, int64_t max_rows, const RowSink& sink,
                                const std::function<void(int64_t)>& progress) {
  if (options.source_target)
    return read_source_target_tensors(plan.paths(), vocab_size, *options.source_target, max_rows, sink,
                                      progress);
  if (options.masking)
    return read_masked_tensors(plan.paths(), vocab_size, *options.masking, plan.has_labels, max_rows, sink,
                               progress);
  return read_pretokenized_rows(plan.paths(), vocab_size, max_length, plan.has_labels,
                                options.reads_completion_mask, options.drops_masked_ids, max_rows, sink,
                                progress);
}

int64_t shown_max_length(const DatasetOptions& options) {
  return options.masking ? std::min(options.masking->max_length, options.max_length) : options.max_length;
}

std::string length_limits_text(const DatasetOptions& options) {
  if (!options.source_target) return fmt::format("max_length {}", shown_max_length(options));
  return fmt::format("max_source_length {} and max_target_length {}",
                     options.source_target->max_source_length, options.source_target->max_target_length);
}

bool may_skip(const std::exception_ptr& error, const RowOptions& options, std::string* first_problem) {
  try {
    std::rethrow_exception(error);
  } catch (const LeftOutRow& row) {
    if (first_problem->empty()) *first_problem = row.what();
  } catch (const Error& problem) {
    if (!options.skip_bad_rows || problem.code() != ExitCode::kBadData) return false;
    if (first_problem->empty()) *first_problem = problem.what();
  } catch (...) {
    return false;
  }
  return true;
}

namespace {

// Whether the row is left out, or with kDrop already added, since it is longer than max_length.
bool is_too_long(const TokenizedRow& row, const RowOptions& options, RowBuilder* builder,
                 DocumentCounts* counts, std::string* first_problem) {
  const auto leave_out = [&](const std::string& problem) {
    if (options.excess_length == ExcessLength::kRaise) fail(ExitCode::kBadData, "{}", problem);
    ++counts->num_bad_rows;
    if (first_problem->empty()) *first_problem = problem;
    return true;
  };
  if (options.excess_length != ExcessLength::kTruncate && row.num_cut_tokens > 0 && options.masking) {
    return leave_out(fmt::format("a row of {} is longer than max_length {} (excess_length_strategy)",
                                 format_count(options.masking->max_length + row.num_cut_tokens, "token"),
                                 options.masking->max_length));
  }
  if (options.excess_length != ExcessLength::kTruncate && row.num_cut_tokens > 0) {
    return leave_out(
        fmt::format("a row is {} longer than max_source_length {} and max_target_length {} "
                    "allow (excess_length_strategy)",
                    format_count(row.num_cut_tokens, "token"), options.source_target->max_source_length,
                    options.source_target->max_target_length));
  }
  const auto limit = static_cast<size_t>(builder->max_length());
  if (options.excess_length == ExcessLength::kTruncate || row.ids.size() <= limit) return false;
  if (row.is_text) {
    // Packing cuts texts anyway.
    if (builder->is_packing()) return false;
    for (std::span<const int32_t> rest = row.ids; rest.size() > 1;
         rest = rest.subspan(std::min(limit, rest.size())))
      builder->add_document(rest.first(std::min(limit, rest.size())));
    return true;
  }
  return leave_out(fmt::format("a row of {} is longer than max_length {} (excess_length_strategy)",
                               format_count(std::ssize(row.ids), "token"), limit));
}

}  // namespace

void add_rows(std::span<const TokenizedRow> rows, const RowOptions& options, int64_t vocab_size,
              RowBuilder* builder, DocumentCounts* counts, std::string* first_problem) {
  std::vector<int32_t> memory;
  for (const TokenizedRow& row : rows) {
    if (row.error && !may_skip(row.error, options, first_problem)) std::rethrow_exception(row.error);
    if (row.error) {
      ++counts->num_bad_rows;
    } else if (row.is_invalid) {
      ++counts->num_invalid_documents;
    } else if (row.ids.empty()) {
      ++counts->num_empty_documents;
    } else if (!is_too_long(row, options, builder, counts, first_problem)) {
      counts->num_empty_texts += row.is_empty_text ? 1 : 0;
      const int64_t num_before = counts->num_documents;
      builder->add_document(kept_ids(row, vocab_size, &memory), row.labels, row.keeps_masked,
                            row.sequence_lengths);
      if (row.num_cut_tokens > 0 && counts->num_documents > num_before) {
        ++counts->num_cut_documents;
        counts->num_cut_tokens += row.num_cut_tokens;
      }
    }
  }
}

}  // namespace tessera
