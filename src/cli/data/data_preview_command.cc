#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/data_input.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/cache/row_builder.h"
#include "data/masked_rows.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "data/rows/token_masks.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

// Read of a text file that is a single document; the rest is ignored.
constexpr int64_t kMaxDocumentBytes = int64_t{1} << 20;

// Marks what is no target: dimmed on a terminal with colours, else by braces around what is one.
class TargetStyle {
 public:
  explicit TargetStyle(bool has_colours) : has_colours_(has_colours) {}

  std::string legend() const {
    return has_colours_ ? "dimmed: not a target of the loss" : "{+...+}: targets of the loss";
  }
  void put(std::string_view text, bool is_target, std::string* out) {
    if (is_target != in_target_) *out += is_target ? begin_target() : end_target();
    in_target_ = is_target;
    *out += text;
  }
  void end(std::string* out) {
    if (has_colours_) *out += "\x1b[0m";
    if (!has_colours_ && in_target_) *out += "+}";
  }

 private:
  std::string_view begin_target() const { return has_colours_ ? "\x1b[0m" : "{+"; }
  std::string_view end_target() const { return has_colours_ ? "\x1b[2m" : "+}"; }

  bool has_colours_;
  bool in_target_ = false;  // at the start, neither style is on
};

struct ShownRow {
  std::span<const int32_t> ids;
  std::span<const int32_t> labels;            // empty: the ids
  std::span<const int32_t> sequence_lengths;  // empty: a single sequence
  bool has_source = false;                    // the sequences are a source and its target
  bool is_masked = false;                     // the labels are in place, the ids masked
  std::span<const int32_t> token_types = {};  // empty: all are 0

  // The three below need has_source.
  std::span<const int32_t> source() const { return ids.first(static_cast<size_t>(sequence_lengths[0])); }
  std::span<const int32_t> target() const { return ids.subspan(source().size() + 1); }
  std::span<const int32_t> target_labels() const { return labels.subspan(source().size() + 1); }
};

class DataPreviewCommand : public Command {
 public:
  std::string name() const override { return "data preview"; }

  void declare_flags(FlagTable* table) override {
    input_.declare_flags(table);
    declare(table, "num_rows", &num_rows_);
    declare(table, "json", &json_);
  }

  DataArguments* data_arguments() override { return &input_.data; }
  void run(FlagTable*) override {
    const OpenData data = open_data(input_);
    if (data.plan.is_pretokenized) {
      preview_pretokenized(data);
    } else if (input_.packing && !json_) {
      preview_packed(data);
    } else {
      preview_documents(data);
    }
    if (num_bad_ > 0) {
      log_warning("skipped {}; the first: {}", format_count(num_bad_, "row"), first_problem_);
    }
    if (num_masked_ > 0) log_warning("skipped {} without a target", format_count(num_masked_, "row"));
    if (num_shown_ == 0) fail(ExitCode::kBadData, "the dataset has no row with text");
  }

 private:
  // Calls `visit` for documents until it returns false; skips bad ones if asked to.
  void for_each_document(const OpenData& data,
                         const std::function<bool(const Document&, const TokenizedRow&)>& visit) {
    ThreadPool pool(threads_for_pool());
    RowStream stream(data.plan, data.options, data.tokenizer ? &*data.tokenizer : nullptr, data.vocab_size,
                     &pool,
                     {.max_bytes = kMaxDocumentBytes,
                      .max_documents = std::min<int64_t>(num_rows_, 64),
                      .keeps_text = true,
                      .max_document_bytes = kMaxDocumentBytes});
    while (stream.next()) {
      for (size_t i = 0; i < stream.rows().size(); ++i) {
        const TokenizedRow& row = stream.rows()[i];
        if (row.error) {
          if (!may_skip(row.error, data.options, &first_problem_)) std::rethrow_exception(row.error);
          ++num_bad_;
        } else if (!row.ids.empty() && !visit(stream.documents()[i], row)) {
          return;
        }
      }
    }
  }

  void preview_documents(const OpenData& data) {
    for_each_document(data, [&](const Document& document, const TokenizedRow& row) {
      if (data.options.masking) {
        show_masked(data, fmt::format("{}, {}", row_shape_name(document.shape), document.where()), row.text,
                    kept_ids(row, data.vocab_size, &kept_ids_), row.labels, {}, row.num_cut_tokens);
        return num_shown_ < num_rows_;
      }
      const size_t kept = input_.max_length
                              ? std::min(row.ids.size(), static_cast<size_t>(*input_.max_length))
                              : row.ids.size();
      const ShownRow shown = {
          std::span(row.ids).first(kept),
          row.labels.empty() ? std::span<const int32_t>() : std::span(row.labels).first(kept),
          kept == row.ids.size() ? std::span(row.sequence_lengths) : std::span<const int32_t>(),
          data.options.source_target.has_value()};
      const bool may_leave_out = !row.keeps_masked || kept < row.ids.size();
      if (!shown.labels.empty() && !input_.packing && may_leave_out && is_masked(shown.labels)) {
        ++num_masked_;
        return true;
      }
      if (json_) {
        print_json(data.tokenizer ? &*data.tokenizer : nullptr, row.text, shown);
      } else {
        std::string title = fmt::format("{}, {}", row_shape_name(document.shape), document.where());
        if (static_cast<int64_t>(row.ids.size()) > data.max_length)
          title += fmt::format(", {} tokens are cut to {} unless rows are packed", row.ids.size(),
                               data.max_length);
        if (row.num_cut_tokens > 0)
          title += fmt::format(", {} cut off at {}", format_count(row.num_cut_tokens, "token"),
                               length_limits_text(data.options));
        print_row(data, title, shown);
      }
      return ++num_shown_ < num_rows_;
    });
  }

  void preview_packed(const OpenData& data) {
    DocumentCounts counts;
    RowBuilder builder(
        data.packing, data.max_length, data.plan.has_labels,
        [&](auto ids, auto labels, auto lengths) {
          if (num_shown_ >= num_rows_) return;
          if (data.options.masking) {
            show_masked(data, format_count(std::ssize(lengths), "document"), "", ids, labels, lengths, 0);
            return;
          }
          ++num_shown_;
          print_row(data, format_count(std::ssize(lengths), "document"), {ids, labels, lengths});
        },
        &counts);
    for_each_document(data, [&](const Document&, const TokenizedRow& row) {
      builder.add_document(row.ids, row.labels, row.keeps_masked, row.sequence_lengths);
      return num_shown_ < num_rows_;
    });
    builder.finish();
  }

  // A row of an encoder as it is kept, masked as in an evaluation.
  void show_masked(const OpenData& data, std::string title, const std::string& text,
                   std::span<const int32_t> ids, std::span<const int32_t> labels,
                   std::span<const int32_t> lengths, int64_t num_cut) {
    std::vector<int32_t> inputs(ids.begin(), ids.end()), targets(labels.begin(), labels.end());
    std::vector<int32_t> types;
    split_token_types(data.vocab_size, &inputs, &types);
    resolve_masked_row(*data.options.masking, kNoStep, row_number_, &inputs, &targets);
    if (!types.empty()) types.resize(inputs.size());
    if (num_cut > 0)
      title +=
          fmt::format(", {} cut off at {}", format_count(num_cut, "token"), length_limits_text(data.options));
    const ShownRow shown = {inputs, targets, lengths, false, true, types};
    const Tokenizer* tokenizer = data.tokenizer ? &*data.tokenizer : nullptr;
    json_ ? print_json(tokenizer, text, shown) : print_row(tokenizer, title, shown);
    ++num_shown_;
  }

  void preview_pretokenized(const OpenData& data) {
    const std::optional<Tokenizer> tokenizer = tokenizer_for_ids();
    const int64_t max_length = input_.max_length.value_or(std::numeric_limits<int32_t>::max());
    const Tokenizer* decoder = tokenizer ? &*tokenizer : nullptr;
    const bool has_source = data.options.source_target.has_value();
    read_tensor_rows(data.plan, data.options, data.vocab_size, max_length, num_rows_,
                     [&](auto ids, auto labels, auto lengths) {
                       if (data.options.masking)
                         return show_masked(data, "token ids", "", ids, labels, {}, 0);
                       ++num_shown_;
                       const ShownRow shown = {ids, labels, lengths, has_source};
                       if (json_) {
                         print_json(decoder, decoder == nullptr ? "" : decoder->decode(ids, false), shown);
                       } else {
                         print_row(decoder, "token ids", shown);
                       }
                     });
  }

  // To show ids as text, if there is one.
  std::optional<Tokenizer> tokenizer_for_ids() const {
    const std::filesystem::path folder = input_.tokenizer.empty() ? input_.model : input_.tokenizer;
    return Tokenizer::open_if_any(folder);
  }

  // What the model is given of a source and its target, under the names it has in Transformers.
  void print_pair_json(const Tokenizer* tokenizer, const ShownRow& row) {
    const auto text = [&](std::span<const int32_t> ids) {
      return tokenizer == nullptr ? "" : tokenizer->decode(ids, /*skip_special_tokens=*/false);
    };
    const nlohmann::ordered_json json = {
        {"row", row_number_++},
        {"source", text(row.source())},
        {"target", text(row.target())},
        {"input_ids", row.source()},
        {"decoder_input_ids", row.ids.subspan(row.source().size(), row.target().size())},
        {"labels", row.target_labels()}};
    print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  void print_json(const Tokenizer* tokenizer, const std::string& text, const ShownRow& row) {
    if (row.has_source) return print_pair_json(tokenizer, row);
    nlohmann::ordered_json json = {{"row", row_number_++},
                                   {"text", text},
                                   {"input_ids", row.ids},
                                   {"labels", row.labels.empty() ? row.ids : row.labels}};
    if (!row.sequence_lengths.empty()) json["seq_lengths"] = row.sequence_lengths;
    if (!row.token_types.empty()) json["token_type_ids"] = row.token_types;
    print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  void print_row(const OpenData& data, const std::string& title, const ShownRow& row) {
    const std::optional<Tokenizer> other = data.tokenizer ? std::nullopt : tokenizer_for_ids();
    print_row(data.tokenizer ? &*data.tokenizer : other ? &*other : nullptr, title, row);
  }

  void print_row(const Tokenizer* tokenizer, const std::string& title, const ShownRow& row) {
    TargetStyle style(output_is_terminal() && terminal_takes_colours());
    if (row_number_ == 0) print("{}\n", style.legend());
    const int64_t num_targets = count_row_targets(row);
    const int64_t num_tokens = std::ssize(row.ids) - (row.has_source ? 1 : 0);
    print("\n--- row {}: {}, {} of them {}: {}\n", row_number_++, format_count(num_tokens, "token"),
          format_count(num_targets), num_targets == 1 ? "target" : "targets", title);
    std::string out;
    if (row.has_source) {
      write_pair(tokenizer, row, &style, &out);
    } else if (row.is_masked) {
      write_masked(tokenizer, row, &style, &out);
    } else if (tokenizer == nullptr) {
      out = fmt::format("{}", fmt::join(row.ids, " "));
    } else {
      write_tokens(*tokenizer, row, &style, &out);
    }
    write_coloured(out + "\n");
  }

  static int64_t count_row_targets(const ShownRow& row) {
    if (row.is_masked) return std::ssize(row.labels) - std::ranges::count(row.labels, kIgnoredLabel);
    return count_targets(std::ssize(row.ids), row.labels, row.sequence_lengths);
  }

  // The source, then the target's tokens, of which those with a label are marked.
  static void write_pair(const Tokenizer* tokenizer, const ShownRow& row, TargetStyle* style,
                         std::string* out) {
    const auto write = [&](std::span<const int32_t> ids, std::span<const int32_t> labels) {
      std::optional<StreamDecoder> decoder;
      if (tokenizer != nullptr) decoder.emplace(*tokenizer, /*skip_special_tokens=*/false);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::string text = decoder ? decoder->push(ids[i]) : fmt::format("{}{}", i == 0 ? "" : " ", ids[i]);
        if (decoder && i + 1 == ids.size()) text += decoder->finish();
        style->put(visible_text(text), labels[i] != kIgnoredLabel, out);
      }
    };
    style->put(fmt::format("source, {}:\n", format_count(std::ssize(row.source()), "token")), false, out);
    write(row.source(), row.labels);
    style->put(fmt::format("\ntarget, {}:\n", format_count(std::ssize(row.target()), "token")), false, out);
    write(row.target(), row.target_labels());
    style->end(out);
  }

  // What the model reads; behind each target what it has to predict: "the {+[MASK]=law+} of".
  static void write_masked(const Tokenizer* tokenizer, const ShownRow& row, TargetStyle* style,
                           std::string* out) {
    std::optional<StreamDecoder> decoder;
    if (tokenizer != nullptr) decoder.emplace(*tokenizer, /*skip_special_tokens=*/false);
    size_t sequence = 0;
    auto sequence_end = row.sequence_lengths.empty() ? std::ssize(row.ids) : int64_t{row.sequence_lengths[0]};
    for (size_t i = 0; i < row.ids.size(); ++i) {
      if (std::cmp_equal(i, sequence_end)) {
        sequence_end += row.sequence_lengths[++sequence];
        style->put(fmt::format("\n~~~~ document {} of this row\n", sequence + 1), false, out);
      }
      std::string text =
          decoder ? decoder->push(row.ids[i]) : fmt::format("{}{}", i == 0 ? "" : " ", row.ids[i]);
      if (decoder && i + 1 == row.ids.size()) text += decoder->finish();
      const int32_t label = row.labels[i];
      if (label != kIgnoredLabel)
        text += "=" + (tokenizer == nullptr ? std::to_string(label) : tokenizer->id_to_token(label));
      style->put(visible_text(text), label != kIgnoredLabel, out);
    }
    style->end(out);
  }

  static void write_tokens(const Tokenizer& tokenizer, const ShownRow& row, TargetStyle* style,
                           std::string* out) {
    StreamDecoder decoder(tokenizer, /*skip_special_tokens=*/false);
    size_t sequence = 0;
    int64_t sequence_begin = 0;  // nothing predicts its first token
    auto sequence_end = row.sequence_lengths.empty() ? std::ssize(row.ids) : int64_t{row.sequence_lengths[0]};
    std::string text;
    for (int64_t at = 0; at < std::ssize(row.ids); ++at) {
      if (at == sequence_end) {
        sequence_begin = at;
        sequence_end += row.sequence_lengths[++sequence];
        style->put(fmt::format("\n~~~~ document {} of this row\n", sequence + 1), false, out);
      }
      const auto index = static_cast<size_t>(at);
      text = decoder.push(row.ids[index]);
      if (at + 1 == std::ssize(row.ids)) text += decoder.finish();
      const bool has_label = row.labels.empty() || row.labels[index] != kIgnoredLabel;
      style->put(visible_text(text), has_label && at > sequence_begin, out);
    }
    style->end(out);
  }

  DataInput input_;
  int64_t num_rows_ = 5;
  std::vector<int32_t> kept_ids_;
  bool json_ = false;
  int64_t row_number_ = 0;
  int64_t num_shown_ = 0;
  int64_t num_bad_ = 0;
  int64_t num_masked_ = 0;
  std::string first_problem_;
};

}  // namespace

std::unique_ptr<Command> make_data_preview_command() { return std::make_unique<DataPreviewCommand>(); }

}  // namespace tessera
