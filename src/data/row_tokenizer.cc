#include "data/row_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "data/masked_rows.h"
#include "data/source_target_rows.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

[[noreturn]] void fail_not_utf8(const Document& document, int64_t at) {
  const std::string& text = document.record.text;
  const auto byte = static_cast<unsigned char>(text[static_cast<size_t>(at)]);
  fail(ExitCode::kBadData,
       "{}: line {}: byte offset {}: expected UTF-8, found byte 0x{:02x}: convert the file, or skip such "
       "documents (skip_invalid_utf8)",
       document.file->string(), document.record.number + std::count(text.begin(), text.begin() + at, '\n'),
       document.record.offset_bytes + at, byte);
}

// Whether a message of the assistant has the weight 0. Error(kBadData): another one has a weight that the
// settings contradict.
bool has_weight_of_zero(const ChatExample& chat, bool only_answers) {
  bool found = false;
  for (int64_t i = 0; i < std::ssize(chat.messages); ++i) {
    const Value& message = chat.messages[static_cast<size_t>(i)];
    const Value* weight = message.find("weight");
    if (weight == nullptr) continue;
    const bool is_zero = *weight->integer() == 0;
    if (*message.find("role")->string() == "assistant") {
      found = found || is_zero;
      continue;
    }
    const bool is_target = !only_answers && i >= chat.num_prompt_messages;
    if (is_zero == is_target) {
      fail(ExitCode::kBadData, "message {} of the {} has the weight {}, but {}", i,
           printable(*message.find("role")->string(), 40), *weight->integer(),
           is_target ? "whole conversations are targets: --assistant_only_loss restricts the loss to answers"
                     : "only answers are targets");
    }
  }
  return found;
}

}  // namespace

std::string Document::where() const { return fmt::format("{}: {}", file->string(), record.place()); }

void RowTokenizer::run(Document* document, TokenizedRow* row) const {
  row->text.clear();
  row->ids.clear();
  row->labels.clear();
  row->sequence_lengths.clear();
  row->token_types.clear();
  row->num_cut_tokens = 0;
  row->is_text = false;
  row->is_empty_text = false;
  row->keeps_masked = false;
  row->is_invalid = false;
  row->error = nullptr;
  try {
    tokenize(document, row);
  } catch (...) {
    row->error = std::current_exception();
  }
}

void RowTokenizer::tokenize(Document* document, TokenizedRow* row) const {
  Record& record = document->record;
  if (record.kind != RecordKind::kValue) {
    if (const int64_t at = find_invalid_utf8(record.text); at >= 0) {
      if (!options_.skip_invalid_utf8) fail_not_utf8(*document, at);
      row->is_invalid = true;
      return;
    }
  }
  if (record.kind == RecordKind::kText) {
    add(TextExample{std::move(record.text)}, row);
  } else {
    if (record.kind == RecordKind::kJson) record.value = parse_record(record, *document->file);
    const std::string where = document->where();
    Example example = read_example(std::move(record.value), document->shape, *document->format, where);
    try {
      std::visit([&](auto& read) { add(std::move(read), row); }, example);
    } catch (const Error& error) {
      fail(error.code(), "{}: {}", where, error.what());
    }
  }
  check_ids(*row, *document);
}

// TRL does the same: a text and a completion end in the end-of-text token, if the tokenizer has one.
void RowTokenizer::append_eos(TokenizedRow* row) const {
  const std::optional<int32_t> eos = tokenizer_->eos_id();
  if (eos && (row->ids.empty() || row->ids.back() != *eos)) row->ids.push_back(*eos);
}

// TRL does the same: the completion begins at the first token that differs from those of the prompt alone.
void RowTokenizer::ignore_prompt(std::string_view prompt, std::span<const int64_t> barriers,
                                 bool add_special_tokens, TokenizedRow* row) const {
  std::vector<int32_t> ids;
  std::vector<TokenCut> cuts;
  tokenizer_->encode(prompt, add_special_tokens, {.cuts = {}, .barriers = barriers}, &ids, &cuts);
  const auto differs = std::mismatch(ids.begin(), ids.end(), row->ids.begin(), row->ids.end()).second;
  if (row->labels.empty()) row->labels = row->ids;
  std::fill_n(row->labels.begin(), differs - row->ids.begin(), kIgnoredLabel);
}

void RowTokenizer::add(TextExample example, TokenizedRow* row) const {
  if (options_.masking) return add_masked(std::move(example), row);
  row->is_text = true;
  if (example.text.empty() && !example.is_row) return;
  tokenizer_->encode(example.text, options_.add_special_tokens, &row->ids);
  append_eos(row);
  row->is_empty_text = example.text.empty();
  if (keeps_text_) row->text = std::move(example.text);
}

// Nothing can be predicted in an empty text.
void RowTokenizer::add_masked(TextExample example, TokenizedRow* row) const {
  if (example.text.empty()) return;
  row->num_cut_tokens =
      encode_cut(*tokenizer_, example.text, options_.add_special_tokens,
                 {options_.masking->max_length, "max_length", /*ends_texts=*/false}, &row->ids);
  if (keeps_text_) row->text = std::move(example.text);
}

// Axolotl does the same: each has the tokenizer's special tokens, except the completion's bos.
void RowTokenizer::add_apart(CompletionExample example, TokenizedRow* row) const {
  if (!example.prompt.empty()) tokenizer_->encode(example.prompt, options_.add_special_tokens, &row->ids);
  const size_t num_prompt_tokens = row->ids.size();
  if (!example.completion.empty()) {
    std::vector<int32_t> ids = tokenizer_->encode(example.completion, options_.add_special_tokens);
    const std::optional<int32_t> eos = tokenizer_->eos_id();
    if (eos && (ids.empty() || ids.back() != *eos)) ids.push_back(*eos);
    const bool has_bos = tokenizer_->bos_id() && ids.front() == *tokenizer_->bos_id();
    row->ids.insert(row->ids.end(), ids.begin() + (has_bos ? 1 : 0), ids.end());
  }
  if (keeps_text_) row->text = std::move(example.prompt) + example.completion;
  if (options_.train_on_prompt) return;
  row->labels = row->ids;
  std::fill_n(row->labels.begin(), num_prompt_tokens, kIgnoredLabel);
}

void RowTokenizer::add(SegmentsExample example, TokenizedRow* row) const {
  for (SegmentsExample::Segment& segment : example.segments) {
    tokenizer_->encode(segment.text, /*add_special_tokens=*/false, &row->ids);
    const bool is_target = segment.is_target || options_.train_on_prompt;
    const size_t begin = row->labels.size();
    row->labels.resize(row->ids.size(), kIgnoredLabel);
    if (is_target)
      std::copy(row->ids.begin() + static_cast<std::ptrdiff_t>(begin), row->ids.end(),
                row->labels.begin() + static_cast<std::ptrdiff_t>(begin));
    if (keeps_text_) row->text += segment.text;
  }
}

void RowTokenizer::add(CompletionExample example, TokenizedRow* row) const {
  if (example.is_tokenized_apart) return add_apart(std::move(example), row);
  if (options_.assistant_only_loss) {
    fail(
        ExitCode::kBadConfig,
        "assistant_only_loss: expected conversations, found a prompt and a completion of text: leave it out; "
        "the loss is taken on the completion");
  }
  std::string text = example.prompt + example.completion;
  tokenizer_->encode(text, options_.add_special_tokens, &row->ids);
  append_eos(row);
  if (keeps_text_) row->text = std::move(text);
  if (!options_.train_on_prompt) ignore_prompt(example.prompt, {}, options_.add_special_tokens, row);
}

void RowTokenizer::add(ChatExample example, TokenizedRow* row) const {
  if (chat_template_ == nullptr) {
    fail(ExitCode::kBadConfig,
         "the row is a conversation, but the model has no chat template: give one with --chat_template");
  }
  if (example.turns != nullptr) return add_turns(example, row);
  const bool find_answers =
      options_.assistant_only_loss || (example.has_answers && !options_.train_on_prompt);
  const bool masks = has_weight_of_zero(example, find_answers);
  RenderedChat chat =
      chat_template_->render(example, {.add_generation_prompt = false,
                                       .find_answers = find_answers || masks,
                                       .parse_special_tokens = options_.parse_special_tokens});
  // The places of targets or, if everything is a target, of the exceptions.
  std::vector<int64_t> places;
  for (size_t i = 0; i < chat.answers.size(); ++i) {
    const bool is_target = chat.has_no_weight.empty() || !chat.has_no_weight[i];
    if (is_target == find_answers) places.insert(places.end(), {chat.answers[i].begin, chat.answers[i].end});
  }
  std::vector<TokenCut> cuts;
  // The template writes the special tokens itself.
  tokenizer_->encode(chat.text, /*add_special_tokens=*/false, {.cuts = places, .barriers = chat.barriers},
                     &row->ids, &cuts);
  if (keeps_text_) row->text = std::move(chat.text);
  if (find_answers) {
    row->labels.assign(row->ids.size(), kIgnoredLabel);
  } else if (masks) {
    row->labels = row->ids;
  }
  for (size_t i = 0; i < cuts.size(); i += 2) {
    if (places[i] == places[i + 1]) continue;
    // In Transformers, a token that has any part of the answer counts as answer.
    const int64_t end = cuts[i + 1].token + (cuts[i + 1].is_inside ? 1 : 0);
    for (auto at = static_cast<size_t>(cuts[i].token); at < static_cast<size_t>(end); ++at)
      row->labels[at] = find_answers ? row->ids[at] : kIgnoredLabel;
  }
  if (example.num_prompt_messages == 0 || options_.train_on_prompt) return;
  example.messages.resize(static_cast<size_t>(example.num_prompt_messages));
  const RenderedChat prompt = chat_template_->render(
      example, {.add_generation_prompt = true, .parse_special_tokens = options_.parse_special_tokens});
  ignore_prompt(prompt.text, prompt.barriers, /*add_special_tokens=*/false, row);
}

void RowTokenizer::add_turns(const ChatExample& example, TokenizedRow* row) const {
  const TurnTargets& targets = *example.turns;
  const bool looks_at_all = targets.eos == EndTargets::kAll || targets.eot == EndTargets::kAll;
  RenderOptions options;
  options.parse_special_tokens = options_.parse_special_tokens;
  std::vector<TurnSpan> turns;  // of the messages that matter
  for (size_t i = 0; i < example.messages.size(); ++i) {
    const std::string& role = *example.messages[i].find("role")->string();
    const bool is_of_role = targets.all_roles || std::find(targets.roles.begin(), targets.roles.end(),
                                                           role) != targets.roles.end();
    const MessageMarks& marks = example.marks[i];
    const bool is_target = marks.training.value_or(marks.parts ? !marks.parts->empty() : is_of_role);
    if (!is_target && !looks_at_all) continue;
    TurnSpan turn;
    turn.is_target = is_target;
    const bool has_parts = marks.parts && !marks.parts->empty();
    const Value* content = example.messages[i].find("content");
    if (has_parts && content != nullptr && is_target)
      turn.is_target_token = part_target_tokens(*content->string(), *marks.parts, *tokenizer_);
    turns.push_back(std::move(turn));
    options.find_turns.push_back({static_cast<int64_t>(i), has_parts ? targets.thinking_field : ""});
  }
  RenderedChat chat = chat_template_->render(example, options);
  std::vector<int64_t> places;
  for (const auto& [begin, end] : chat.turns) {
    if (begin < end) places.insert(places.end(), {begin, end});
  }
  std::sort(places.begin(), places.end());
  std::vector<TokenCut> cuts;
  tokenizer_->encode(chat.text, /*add_special_tokens=*/false, {.cuts = places, .barriers = chat.barriers},
                     &row->ids, &cuts);
  const auto cut_at = [&](int64_t place) {
    return cuts[static_cast<size_t>(std::lower_bound(places.begin(), places.end(), place) - places.begin())];
  };
  for (size_t i = 0; i < turns.size(); ++i) {
    const auto [begin, end] = chat.turns[i];
    if (begin >= end) continue;
    const TokenCut last = cut_at(end);
    turns[i].begin = cut_at(begin).token;
    turns[i].end = last.token + (last.is_inside ? 1 : 0);
  }
  row->labels =
      turn_labels(row->ids, turns, targets, end_tokens_of(targets, chat_template_->source(), *tokenizer_));
  if (keeps_text_) row->text = std::move(chat.text);
}

void RowTokenizer::add(SourceTargetExample example, TokenizedRow* row) const {
  if (!example.texts) return;
  const SourceTarget& options = *options_.source_target;
  const auto encode = [&](const std::string& text, int64_t max_length, std::vector<int32_t>* ids) {
    row->num_cut_tokens += encode_cut(*tokenizer_, text, options_.add_special_tokens,
                                      {max_length, "max_source_length, max_target_length"}, ids);
  };
  encode(options.source_prefix + example.texts->source, options.max_source_length, &row->ids);
  if (row->ids.empty()) return;
  std::vector<int32_t> labels;
  encode(example.texts->target, options.max_target_length, &labels);
  append_target(labels, options, row);
}

void RowTokenizer::add(TokenExample example, TokenizedRow* row) const {
  if (options_.source_target)
    return make_source_target_row(example.input_ids, example.labels, *options_.source_target, row);
  if (options_.masking) {
    if (keeps_text_ && tokenizer_ != nullptr) row->text = tokenizer_->decode(example.input_ids, false);
    make_masked_row(example.input_ids, example.labels, *options_.masking, row);
    return add_token_types(example.token_types, *options_.masking, "field 'token_type_ids'", row);
  }
  row->ids = std::move(example.input_ids);
  row->labels = std::move(example.labels);
  row->sequence_lengths = std::move(example.sequence_lengths);
  if (!example.completion_mask.empty() && options_.reads_completion_mask) {
    if (row->labels.empty()) row->labels = row->ids;
    for (size_t i = 0; i < row->labels.size(); ++i)
      if (example.completion_mask[i] == 0) row->labels[i] = kIgnoredLabel;
  }
  if (keeps_text_ && tokenizer_ != nullptr)
    row->text = tokenizer_->decode(row->ids, /*skip_special_tokens=*/false);
  row->keeps_masked = !options_.drops_masked_ids;
}

void RowTokenizer::check_ids(const TokenizedRow& row, const Document& document) const {
  const auto is_bad = [this](int32_t id) { return id < 0 || id >= vocab_size_; };
  // A target's ids are its labels, which are checked below.
  const bool has_source = options_.source_target && document.shape == RowShape::kTokens;
  const auto end = has_source && !row.ids.empty() ? row.ids.begin() + row.sequence_lengths[0] : row.ids.end();
  if (const auto bad = std::find_if(row.ids.begin(), end, is_bad); bad != end) {
    if (document.shape == RowShape::kTokens) {
      fail(ExitCode::kBadData, "{}: field 'input_ids': value {}: expected an id from 0 to {}, found {}",
           document.where(), bad - row.ids.begin(), vocab_size_ - 1, *bad);
    }
    fail(ExitCode::kBadData,
         "{}: token id {} ('{}') is not below the model's vocab_size {}: the tokenizer belongs to another "
         "model",
         document.where(), *bad, printable(tokenizer_->id_to_token(*bad)), vocab_size_);
  }
  const bool is_masked_row = options_.masking && document.shape == RowShape::kTokens;
  const int64_t num_before = has_source ? row.sequence_lengths[0] + 1 : is_masked_row ? 1 : 0;  // of labels
  const auto is_bad_label = [&](int32_t label) { return label != kIgnoredLabel && is_bad(label); };
  const auto bad = std::find_if(row.labels.begin(), row.labels.end(), is_bad_label);
  if (bad != row.labels.end()) {
    fail(ExitCode::kBadData, "{}: field 'labels': value {}: expected an id from 0 to {} or -100, found {}",
         document.where(), bad - row.labels.begin() - num_before, vocab_size_ - 1, *bad);
  }
}

}  // namespace tessera
