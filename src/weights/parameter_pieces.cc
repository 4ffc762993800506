#include "weights/parameter_pieces.h"

#include <algorithm>

#include "base/error.h"

namespace tessera {

std::vector<OwnedPart> owned_parts(const ParameterLayout& layout, const std::vector<ElementRange>& owned) {
  std::vector<ElementRange> ranges;
  for (const ElementRange& range : owned) {
    TESSERA_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= layout.num_elements() &&
                      (ranges.empty() || ranges.back().end <= range.begin),
                  "[{}, {}) of {}", range.begin, range.end, layout.num_elements());
    if (range.begin == range.end) continue;
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  std::vector<OwnedPart> parts;
  auto range = ranges.begin();
  for (const Parameter& parameter : layout.parameters()) {
    const int64_t parameter_end = parameter.offset + parameter.num_elements;
    int64_t position = 0;
    while (range != ranges.end() && range->end <= parameter.offset) ++range;
    for (auto at = range; at != ranges.end() && at->begin < parameter_end; ++at) {
      const int64_t begin = std::max(at->begin, parameter.offset) - parameter.offset;
      const int64_t end = std::min(at->end, parameter_end) - parameter.offset;
      parts.push_back({&parameter, begin, end, position});
      position += end - begin;
    }
  }
  return parts;
}

std::vector<ParameterPiece> cut_into_pieces(const std::vector<OwnedPart>& parts) {
  std::vector<ParameterPiece> pieces;
  for (const OwnedPart& part : parts) {
    for (int64_t begin = part.begin; begin < part.end; begin += kParameterPieceElements) {
      const int64_t count = std::min(kParameterPieceElements, part.end - begin);
      pieces.push_back({part.parameter, begin, count, part.position + begin - part.begin});
    }
  }
  return pieces;
}

}  // namespace tessera
