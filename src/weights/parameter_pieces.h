// Ranges of a model's flat array as parts of its parameters, cut into the pieces in which files are read and
// written.
#pragma once

#include <cstdint>
#include <vector>

#include "model/parameters.h"

namespace tessera {

// Elements [begin, end) of the flat array.
struct ElementRange {
  int64_t begin;
  int64_t end;
};

// Elements [begin, end) of a parameter, `position` of whose elements are in earlier parts.
struct OwnedPart {
  const Parameter* parameter;
  int64_t begin;
  int64_t end;
  int64_t position;
};
// The parts of the parameters that lie in the ranges, ascending.
std::vector<OwnedPart> owned_parts(const ParameterLayout& layout, const std::vector<ElementRange>& owned);

// The unit of reading, encoding, writing and checksumming: elements of one parameter. 1 MiB of float32 stays
// in a core's cache while it is checked and used, and is large enough for a disk.
inline constexpr int64_t kParameterPieceElements = int64_t{1} << 18;
struct ParameterPiece {
  const Parameter* parameter;
  int64_t begin;  // in the parameter
  int64_t count;
  int64_t position;  // as of OwnedPart

  int64_t flat_begin() const { return parameter->offset + begin; }
  int64_t flat_end() const { return flat_begin() + count; }
};
std::vector<ParameterPiece> cut_into_pieces(const std::vector<OwnedPart>& parts);

}  // namespace tessera
