#include "cli/terminal/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/text.h"
#include "cli/terminal/terminal.h"

namespace tessera {
namespace {

constexpr int64_t kShortestBar = 5, kLongestBar = 40;
constexpr const char* kDim = "2";
constexpr const char* kGreen = "32";
constexpr const char* kYellow = "33";

// Fields are dropped in this order when space runs out.
enum Importance { kSpeedField, kRateField, kTokensField, kEtaField, kLossField, kStepField };

struct Field {
  std::string before, value, after;
  Importance rank = kStepField;
  const char* after_colour = kDim;
};

std::string coloured(const std::string& text, const char* colour) {
  return text.empty() ? "" : fmt::format("\x1b[{}m{}\x1b[0m", colour, text);
}

std::string field_text(const Field& field, bool colours) {
  if (!colours) return field.before + field.value + field.after;
  return coloured(field.before, kDim) + field.value + coloured(field.after, field.after_colour);
}

std::string joined(const std::vector<Field>& fields, bool colours, const char* gap) {
  std::string line;
  for (const Field& field : fields) line += (line.empty() ? "" : gap) + field_text(field, colours);
  return line;
}

std::string tokens_text(double tokens_per_second) {
  return tokens_per_second < 999'999.5 ? format_count(std::llround(tokens_per_second))
                                       : fmt::format("{:.2f}M", tokens_per_second * 1e-6);
}

std::string steps_text(const RunProgress& contents) {
  return contents.max_steps > 0 ? fmt::format("{}/{}", contents.step, contents.max_steps)
                                : std::to_string(contents.step);
}

Field loss_field(const RunProgress& contents, bool utf8) {
  Field field = {"loss ", fmt::format("{:.4f}", contents.loss), "", kLossField};
  switch (contents.trend) {
    case Trend::kUnknown:
      break;
    case Trend::kFalling:
      field.after = utf8 ? "\u2193" : "v";
      field.after_colour = kGreen;
      break;
    case Trend::kLevel:
      field.after = utf8 ? "\u2192" : "=";
      break;
    case Trend::kRising:
      field.after = utf8 ? "\u2191" : "^";
      field.after_colour = kYellow;
      break;
  }
  return field;
}

Field speed_field(const RunProgress& contents) {
  if (!contents.mfu) return {"", format_tflops(contents.tflops), " TFLOPS", kSpeedField};
  return {"MFU ", fmt::format("{:.2f}", *contents.mfu), "", kSpeedField};
}

std::vector<Field> fields_of(const RunProgress& contents, bool utf8) {
  std::vector<Field> fields = {{"", steps_text(contents), ""}};
  if (!contents.activity.empty()) fields.push_back({"", contents.activity, ""});
  fields.push_back(loss_field(contents, utf8));
  fields.push_back({"lr ", fmt::format("{:.2e}", contents.learning_rate), "", kRateField});
  fields.push_back({"", tokens_text(contents.tokens_per_second), " tokens/s", kTokensField});
  fields.push_back(speed_field(contents));
  fields.push_back({"ETA ", format_eta(contents.eta_s), "", kEtaField});
  return fields;
}

std::string bar_before(const RunProgress& contents, const LineStyle& style, int64_t columns) {
  const double fraction = static_cast<double>(contents.step) / static_cast<double>(contents.max_steps);
  const std::string bar = bar_text(fraction, std::min(columns, kLongestBar), style.utf8);
  return fmt::format("[{}] ", style.colours ? coloured(bar, kGreen) : bar);
}

}  // namespace

LineStyle terminal_style() { return {terminal_width() - 1, terminal_is_utf8(), error_takes_colours()}; }

std::string progress_line(const RunProgress& contents, const LineStyle& style) {
  const int64_t width = std::min(style.width, kMaxLineColumns);
  std::vector<Field> fields = fields_of(contents, style.utf8);
  const auto columns_left = [&](const char* gap) {
    return width - count_characters(joined(fields, false, gap));
  };
  const int64_t bar_columns = columns_left("  ") - 3;
  if (contents.max_steps > 0 && bar_columns >= kShortestBar) {
    return bar_before(contents, style, bar_columns) + joined(fields, style.colours, "  ");
  }
  for (int rank = kSpeedField; rank < kStepField; ++rank) {
    for (const char* gap : {"  ", " "}) {
      if (columns_left(gap) >= 0) return joined(fields, style.colours, gap);
    }
    if (rank == kEtaField) fields.front().value = std::to_string(contents.step);
    if (columns_left(" ") >= 0) return joined(fields, style.colours, " ");
    std::erase_if(fields, [rank](const Field& field) { return field.rank == rank; });
  }
  return joined(fields, false, " ").substr(0, static_cast<size_t>(width));
}

std::string plain_progress_line(const RunProgress& contents) {
  std::string line =
      fmt::format("step {}  loss {:.4f}  trend {}  lr {:.2e}  {} tokens/s  {}  ETA {}", steps_text(contents),
                  contents.loss, contents.loss_change ? fmt::format("{:+.4f}", *contents.loss_change) : "--",
                  contents.learning_rate, tokens_text(contents.tokens_per_second),
                  field_text(speed_field(contents), false), format_eta(contents.eta_s));
  if (!contents.activity.empty()) line += "  " + contents.activity;
  return line;
}

std::string format_tflops(double tflops) { return fmt::format("{:#.3g}", tflops); }

}  // namespace tessera
