#include "train/evaluation/choices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"
#include "train/evaluation/evaluate.h"

namespace tessera {
namespace {

struct QuestionText {
  std::string context;
  std::vector<std::string> choices;
  size_t answer;
};

QuestionText parse_question(const std::string& line, const std::string& origin) {
  const Json json = parse_json(line, origin);
  const JsonNode fields(json, origin);
  fields.object();
  QuestionText question;
  question.context = fields["context"].string();
  for (const JsonNode& choice : fields["choices"].list()) {
    if (choice.string().empty()) choice.expected("a text that is not empty");
    question.choices.push_back(choice.string());
  }
  const auto num_choices = std::ssize(question.choices);
  if (num_choices < 2) fields["choices"].expected("a list of at least two texts");
  const JsonNode answer = fields["answer"];
  if (answer.is_string()) {
    const auto found = std::ranges::find(question.choices, answer.string());
    if (found == question.choices.end())
      answer.expected("the text of one of the choices, or its index from 0");
    question.answer = static_cast<size_t>(found - question.choices.begin());
  } else {
    question.answer = static_cast<size_t>(answer.integer(0, num_choices - 1));
  }
  return question;
}

// Without the space before a choice, which lm-evaluation-harness keeps apart as target_delimiter.
int64_t characters_of_choice(std::string_view choice) {
  if (choice.size() > 1 && choice.starts_with(' ')) choice.remove_prefix(1);
  return count_characters(choice);
}

// The standard error of a mean over n values that are 0 or 1: s^2 = n p (1 - p) / (n - 1).
double standard_error(double mean, int64_t n) {
  if (n < 2) return std::numeric_limits<double>::quiet_NaN();
  return std::sqrt(mean * (1 - mean) / static_cast<double>(n - 1));
}

}  // namespace

ChoiceSet ChoiceSet::open(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                          bool add_special_tokens, int64_t max_length, int64_t vocab_size) {
  ChoiceSet set;
  for (const std::string& file : files) {
    std::istringstream lines(read_text_file(file));
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const std::string where = fmt::format("{}:{}", file, number);
      const QuestionText question = parse_question(line, where);
      set.questions_.push_back({set.rows_.size(), question.choices.size(), question.answer});
      for (const std::string& choice : question.choices) {
        set.add_row(tokenizer, add_special_tokens, max_length, question.context, choice, where);
      }
    }
  }
  if (set.questions_.empty()) {
    fail(ExitCode::kBadData,
         "{}: expected lines with \"context\", \"choices\" and \"answer\", found an empty file",
         files.empty() ? "choices" : files.front());
  }
  for (const Row& row : set.rows_) {
    const int32_t highest = *std::ranges::max_element(row.ids);
    if (highest < vocab_size) continue;
    fail(ExitCode::kBadConfig, "{}: the tokenizer gives id {}, but the model has vocab_size {}",
         files.front(), highest, vocab_size);
  }
  return set;
}

void ChoiceSet::add_row(const Tokenizer& tokenizer, bool add_special_tokens, int64_t max_length,
                        const std::string& context, const std::string& choice, const std::string& where) {
  const size_t end = context.find_last_not_of(" \t\n\r\f\v");
  const std::string before = end == std::string::npos ? "" : context.substr(0, end + 1);
  const std::string after = context.substr(before.size()) + choice;
  Row row;
  row.num_characters = characters_of_choice(choice);
  size_t num_context;
  if (before.empty()) {
    const std::optional<int32_t> prefix = tokenizer.bos_id() ? tokenizer.bos_id() : tokenizer.eos_id();
    if (!prefix) {
      fail(ExitCode::kBadData,
           "{}: field 'context': expected a text, found an empty one, and the tokenizer has no "
           "beginning-of-text token to begin with",
           where);
    }
    row.ids = {*prefix};
    tokenizer.encode(after, /*add_special_tokens=*/false, &row.ids);
    if (row.ids.size() > 1 && row.ids[1] == *prefix) row.ids.erase(row.ids.begin());
    num_context = 1;
  } else {
    num_context = tokenizer.encode(before, add_special_tokens).size();
    row.ids = tokenizer.encode(before + after, add_special_tokens);
  }
  row.num_choice_tokens = std::ssize(row.ids) - static_cast<int64_t>(num_context);
  if (row.num_choice_tokens < 1) {
    fail(ExitCode::kBadData, "{}: the choice '{}' has no token of its own after its context", where, choice);
  }
  // The last token is only predicted.
  const int64_t excess = std::ssize(row.ids) - (max_length + 1);
  if (excess > 0) {
    if (excess >= static_cast<int64_t>(num_context)) {
      fail(ExitCode::kBadData, "{}: the choice '{}' has {} tokens, expected at most {}", where, choice,
           row.num_choice_tokens, max_length);
    }
    row.ids.erase(row.ids.begin(), row.ids.begin() + excess);
    ++num_cut_contexts_;
  }
  max_row_length_ = std::max(max_row_length_, std::ssize(row.ids) - 1);
  num_tokens_ += std::ssize(row.ids);
  rows_.push_back(std::move(row));
}

std::string ChoiceSet::cut_contexts_text(int64_t max_length) const {
  return fmt::format("{} of {} had the beginning of the context cut off, to have at most {}",
                     format_count(num_cut_contexts_), count_of(std::ssize(rows_), "choice"),
                     count_of(max_length, "token"));
}

ActivationLimits ChoiceSet::limits(int64_t max_rows, int64_t max_tokens) const {
  return limits_of_rows(std::ssize(rows_), max_row_length_, max_rows, max_tokens);
}

void ChoiceSet::make_batch(const std::vector<int64_t>& rows, PackedBatch* batch) const {
  *batch = {};
  batch->cu_seqlens = {0};
  for (const int64_t number : rows) {
    const Row& row = rows_[static_cast<size_t>(number)];
    const int64_t length = std::ssize(row.ids) - 1;
    for (int64_t t = 0; t < length; ++t) {
      const bool is_target = t >= length - row.num_choice_tokens;
      batch->input_ids.push_back(row.ids[static_cast<size_t>(t)]);
      batch->positions.push_back(static_cast<int32_t>(t));
      batch->targets.push_back(is_target ? row.ids[static_cast<size_t>(t) + 1] : kIgnoredLabel);
    }
    batch->num_targets += row.num_choice_tokens;
    batch->cu_seqlens.push_back(static_cast<int32_t>(batch->input_ids.size()));
  }
}

void ChoiceSet::count_correct(const std::vector<double>& losses, ChoiceResult* result) const {
  int64_t num_right = 0, num_right_norm = 0;
  for (const Question& question : questions_) {
    // The first of the best, as numpy.argmax.
    size_t best = 0, best_norm = 0;
    double least = 0, least_norm = 0;
    ChoiceResult::Question scored;
    for (size_t i = 0; i < question.num_choices; ++i) {
      const size_t row = question.first_row + i;
      const double norm = losses[row] / static_cast<double>(rows_[row].num_characters);
      scored.log_likelihoods.push_back(-losses[row]);
      if (i == 0 || losses[row] < least) best = i, least = losses[row];
      if (i == 0 || norm < least_norm) best_norm = i, least_norm = norm;
    }
    num_right += best == question.answer ? 1 : 0;
    num_right_norm += best_norm == question.answer ? 1 : 0;
    scored.answer = static_cast<int64_t>(question.answer);
    scored.likeliest = static_cast<int64_t>(best);
    scored.likeliest_norm = static_cast<int64_t>(best_norm);
    result->questions.push_back(std::move(scored));
  }
  const int64_t n = num_questions();
  result->num_questions = n;
  result->accuracy = static_cast<double>(num_right) / static_cast<double>(n);
  result->accuracy_norm = static_cast<double>(num_right_norm) / static_cast<double>(n);
  result->accuracy_stderr = standard_error(result->accuracy, n);
  result->accuracy_norm_stderr = standard_error(result->accuracy_norm, n);
}

ChoiceResult ChoiceSet::score(TrainableModel& model, int64_t max_rows, int64_t max_tokens, Communicator& comm,
                              const std::function<bool(double fraction)>& progress,
                              ContextRank* context) const {
  const Stopwatch stopwatch;
  ChoiceResult result;
  const auto batches = batches_of_rows(
      std::ssize(rows_), [this](int64_t row) { return std::ssize(rows_[static_cast<size_t>(row)].ids) - 1; },
      max_rows, max_tokens);
  std::vector<double> losses(rows_.size());  // of this rank's batches; zero for the others'
  PackedBatch batch;
  std::vector<LossSums> sums;
  const auto compute = [&](size_t number) {
    const std::vector<int64_t>& rows = batches[number];
    make_batch(rows, &batch);
    const PackedBatch& own = take_slice(context, batch);
    sums.resize(static_cast<size_t>(own.num_sequences()));
    model.forward_loss(own, /*label_smoothing=*/0, sums);
    for (size_t i = 0; i < rows.size(); ++i) losses[static_cast<size_t>(rows[i])] = sums[i].loss_sum;
  };
  result.stopped = !take_in_turn(std::ssize(batches), model, comm, context, compute, progress);
  if (result.stopped) return result;
  comm.sum(losses, {"likelihoods of choices"});
  for (const double loss : losses) {
    if (std::isfinite(loss)) continue;
    fail(ExitCode::kNumerics, "the loss of a choice is {}: the model's weights have diverged", loss);
  }
  count_correct(losses, &result);
  result.runtime_s = stopwatch.seconds();
  return result;
}

}  // namespace tessera
