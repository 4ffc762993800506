// Line charts made of characters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct PlotPoint {
  double x;
  double y;
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;  // ascending x; non-finite ones are skipped
  // Drawn as a line through all points, or as one mark per point.
  bool as_line = true;
};

struct PlotOptions {
  int64_t width = 79;   // columns, axis included
  int64_t height = 14;  // lines of the drawing area
  bool utf8 = true;     // Braille dots, 2 x 4 per character; otherwise ASCII
  std::string x_name;
};

// Lines ending in "\n"; "" if there is nothing to draw. A column that covers several points of a line shows
// their mean.
std::string plot(const std::vector<PlotSeries>& series, const PlotOptions& options);

}  // namespace tessera
