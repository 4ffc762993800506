// A picture of a search: hours and cost of a job on every combination.
#pragma once

#include <string>

#include "forecast/instances/search_report.h"

namespace tessera {

// SVG: logarithmic axes, a point for each combination within the limits, its front as a line with labels that
// do not overlap; title and description for screen readers, the values of a point in its tooltip.
std::string search_picture(const SearchResult& result, const SearchView& view);

}  // namespace tessera
