#include "forecast/text/drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace tessera {

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string tick_text(double value) {
  return value >= 1000 ? format_count(std::llround(value)) : fmt::format("{:g}", value);
}

LogAxis::LogAxis(double low, double high, double from, double to) : from_(from), to_(to) {
  const double margin = std::max(0.04 * std::log10(high / low), 0.05);
  low_ = std::log10(low) - margin;
  high_ = std::log10(high) + margin;
}

double LogAxis::pixel(double value) const {
  return from_ + (std::log10(value) - low_) / (high_ - low_) * (to_ - from_);
}

std::vector<double> LogAxis::ticks() const {
  const double decades = high_ - low_;
  const std::vector<double> digits = decades < 0.7   ? std::vector<double>{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8}
                                     : decades < 1.5 ? std::vector<double>{1, 1.5, 2, 3, 5, 7}
                                     : decades < 3   ? std::vector<double>{1, 2, 5}
                                                     : std::vector<double>{1};
  std::vector<double> values;
  for (int power = static_cast<int>(std::floor(low_)); power <= high_; ++power) {
    for (const double digit : digits) {
      const double value = digit * std::pow(10, power);
      if (std::log10(value) >= low_ && std::log10(value) <= high_) values.push_back(value);
    }
  }
  return values;
}

Drawing::Drawing(double width, double height, const std::string& title, const std::string& description) {
  out_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "role=\"img\" aria-labelledby=\"title description\" font-family=\"Helvetica, Arial, sans-serif\" "
      "font-size=\"12\" fill=\"#1f2933\">\n<title id=\"title\">{2}</title>\n<desc "
      "id=\"description\">{3}</desc>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      width, height, svg_escaped(title), svg_escaped(description));
  out_ += fmt::format("<text x=\"84\" y=\"28\" font-size=\"17\" font-weight=\"600\">{}</text>\n",
                      svg_escaped(title));
}

void Drawing::text(double x, double y, const char* anchor, const std::string& words) {
  out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                      svg_escaped(words));
}

void Drawing::line(double x1, double y1, double x2, double y2, const char* color) {
  out_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1,
                      y1, x2, y2, color);
}

void Drawing::upright_text(double x, double y, const std::string& words) {
  out_ += fmt::format("<text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                      x, y, svg_escaped(words));
}

}  // namespace tessera
