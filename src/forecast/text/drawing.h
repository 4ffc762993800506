// Pictures of plans as SVG.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// Text between tags.
std::string svg_escaped(const std::string& text);

// The value of a tick: "0.5", "20", "4,000".
std::string tick_text(double value);

// A logarithmic axis.
class LogAxis {
 public:
  // `from` and `to` are the pixels of its ends.
  LogAxis(double low, double high, double from, double to);

  double pixel(double value) const;
  // Round numbers, the fewer the longer the axis.
  std::vector<double> ticks() const;

 private:
  double low_ = 0, high_ = 1;
  double from_, to_;
};

class Drawing {
 public:
  // Title and description are for screen readers, too; the title is also drawn at the top left.
  Drawing(double width, double height, const std::string& title, const std::string& description);

  void text(double x, double y, const char* anchor, const std::string& words);
  void line(double x1, double y1, double x2, double y2, const char* color);
  // Written upward, centred at y.
  void upright_text(double x, double y, const std::string& words);
  void add(const std::string& element) { out_ += element; }
  std::string svg() const { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

}  // namespace tessera
