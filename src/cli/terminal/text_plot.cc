#include "cli/terminal/text_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/text.h"

namespace tessera {
namespace {

constexpr int64_t kLabelColumns = 9;  // "  12.345 |"
constexpr char32_t kBrailleBlank = 0x2800;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Position of a value in 0 ... steps - 1.
  int64_t step(double value, int64_t steps) const {
    if (high <= low) return (steps - 1) / 2;
    return std::clamp<int64_t>(std::lround((value - low) / (high - low) * static_cast<double>(steps - 1)), 0,
                               steps - 1);
  }
  double value(int64_t step, int64_t steps) const {
    return high -
           (high - low) * static_cast<double>(step) / static_cast<double>(std::max<int64_t>(steps - 1, 1));
  }
};

bool is_finite(const PlotPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// Dots, `x_per_cell` x `y_per_cell` of them in a character.
class Canvas {
 public:
  Canvas(int64_t columns, int64_t rows, bool utf8)
      : columns_(columns), rows_(rows), utf8_(utf8), cells_(static_cast<size_t>(columns * rows)) {}

  int64_t width() const { return columns_ * (utf8_ ? 2 : 1); }
  int64_t height() const { return rows_ * (utf8_ ? 4 : 1); }

  // (0, 0) is bottom left.
  void set_dot(int64_t x, int64_t y) {
    const int64_t from_top = height() - 1 - y;
    if (!utf8_) {
      cell(x, from_top) = U'*';
      return;
    }
    // Unicode's dot order: 1 2 3 7 in the left column, 4 5 6 8 in the right one.
    constexpr int kBits[2][4] = {{0, 1, 2, 6}, {3, 4, 5, 7}};
    char32_t& target = cell(x / 2, from_top / 4);
    if (target >= kBrailleBlank || target == 0) {
      target = std::max(target, kBrailleBlank) | 1u << kBits[x % 2][from_top % 4];
    }
  }
  void set_mark(int64_t x, int64_t y, char mark) {
    const int64_t from_top = height() - 1 - y;
    cell(utf8_ ? x / 2 : x, utf8_ ? from_top / 4 : from_top) = static_cast<char32_t>(mark);
  }

  std::string line(int64_t row) const {
    std::string out;
    for (int64_t column = 0; column < columns_; ++column) {
      const char32_t c = cells_[static_cast<size_t>(row * columns_ + column)];
      if (c == 0) {
        out += ' ';
      } else if (c < 0x80) {
        out += static_cast<char>(c);
      } else {
        append_utf8(c, &out);
      }
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  }

 private:
  char32_t& cell(int64_t column, int64_t row) { return cells_[static_cast<size_t>(row * columns_ + column)]; }

  int64_t columns_;
  int64_t rows_;
  bool utf8_;
  std::vector<char32_t> cells_;
};

void draw_line(const PlotSeries& series, const Range& x_range, const Range& y_range, Canvas* canvas) {
  struct Mean {
    double sum = 0;
    int64_t count = 0;
  };
  std::vector<Mean> means(static_cast<size_t>(canvas->width()));
  for (const PlotPoint& point : series.points) {
    if (!is_finite(point)) continue;
    Mean& mean = means[static_cast<size_t>(x_range.step(point.x, canvas->width()))];
    mean.sum += point.y;
    ++mean.count;
  }
  std::optional<PlotPoint> last;  // in dots
  for (int64_t x = 0; x < canvas->width(); ++x) {
    const Mean& mean = means[static_cast<size_t>(x)];
    if (mean.count == 0) continue;
    const int64_t y = y_range.step(mean.sum / static_cast<double>(mean.count), canvas->height());
    const PlotPoint here{static_cast<double>(x), static_cast<double>(y)};
    const PlotPoint from = last.value_or(here);
    const auto steps = static_cast<int64_t>(std::max(std::abs(here.x - from.x), std::abs(here.y - from.y)));
    for (int64_t i = 0; i <= steps; ++i) {
      const double share = steps == 0 ? 1 : static_cast<double>(i) / static_cast<double>(steps);
      canvas->set_dot(std::lround(from.x + (here.x - from.x) * share),
                      std::lround(from.y + (here.y - from.y) * share));
    }
    last = here;
  }
}

std::string legend(const std::vector<PlotSeries>& series, bool utf8) {
  std::string out(static_cast<size_t>(kLabelColumns + 2), ' ');
  for (const PlotSeries& one : series) {
    if (one.points.empty()) continue;
    const char* sign = !one.as_line ? "o" : utf8 ? "\u2812\u2812" : "**";
    out += fmt::format("{} {}   ", sign, one.name);
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + "\n";
}

}  // namespace

std::string plot(const std::vector<PlotSeries>& series, const PlotOptions& options) {
  Range x_range;
  Range y_range;
  for (const PlotSeries& one : series) {
    for (const PlotPoint& point : one.points) {
      if (!is_finite(point)) continue;
      x_range.include(point.x);
      y_range.include(point.y);
    }
  }
  const int64_t columns = options.width - kLabelColumns - 2;
  if (x_range.high < x_range.low || columns < 8 || options.height < 2) return "";

  Canvas canvas(columns, options.height, options.utf8);
  for (const PlotSeries& one : series) {
    if (one.as_line) draw_line(one, x_range, y_range, &canvas);
  }
  for (const PlotSeries& one : series) {
    if (one.as_line) continue;
    for (const PlotPoint& point : one.points) {
      if (!is_finite(point)) continue;
      canvas.set_mark(x_range.step(point.x, canvas.width()), y_range.step(point.y, canvas.height()), 'o');
    }
  }
  std::string out = legend(series, options.utf8);
  for (int64_t row = 0; row < options.height; ++row) {
    // Every third line and the last one have a number.
    const bool labelled = row % 3 == 0 || row == options.height - 1;
    const std::string label = labelled ? fmt::format("{:.4g}", y_range.value(row, options.height)) : "";
    const char* axis = options.utf8 ? (labelled ? "\u2524" : "\u2502") : (labelled ? "+" : "|");
    out += fmt::format("{:>{}} {}{}\n", label, kLabelColumns, axis, canvas.line(row));
  }
  const std::string left = fmt::format("{:g}", x_range.low);
  const std::string right = fmt::format("{:g}", x_range.high);
  const int64_t room = columns - static_cast<int64_t>(left.size() + right.size());
  out += fmt::format("{:>{}}{}{:^{}}{}\n", "", kLabelColumns + 2, left, options.x_name,
                     std::max<int64_t>(room, 0), right);
  return out;
}

}  // namespace tessera
