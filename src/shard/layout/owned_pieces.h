// The elements whose optimizer state a rank keeps: its part of every group, and in stage 0 the parts of its
// whole rail.
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "shard/layout/shard_plan.h"
#include "weights/model_folder.h"

namespace tessera {

Part intersection(const Part& a, const Part& b);

class OwnedPieces {
 public:
  // A contiguous range of the flat array and where its state begins.
  struct Piece {
    int64_t group;
    Part elements;
    int64_t state_begin;

    int64_t state_of(int64_t element) const { return state_begin + element - elements.begin; }
  };

  OwnedPieces(const ShardPlan& plan, int rank, bool of_rail);

  const std::vector<Piece>& pieces() const { return pieces_; }  // ascending
  int64_t num_elements() const {
    return pieces_.empty() ? 0 : pieces_.back().state_of(pieces_.back().elements.end);
  }
  // The piece with this element; nullptr: its state is another rank's.
  const Piece* find(int64_t group, int64_t element) const;
  // All pieces. Ranges ascend; a rank that trains alone has a single one.
  std::vector<ElementRange> ranges() const;

  // Calls body(piece, elements, first value) for each piece's part of [begin, begin + count); this rank must
  // keep all of these elements.
  template <typename Body>
  void for_each_part(int64_t begin, int64_t count, const Body& body) const {
    int64_t num_found = 0;
    for (const Piece& piece : pieces_) {
      const Part common = intersection(piece.elements, {begin, begin + count});
      if (common.size() == 0) continue;
      body(piece, common, common.begin - begin);
      num_found += common.size();
    }
    TESSERA_CHECK(num_found == count, "rank {} keeps {} of the elements [{}, {})", rank_, num_found, begin,
                  begin + count);
  }

 private:
  int rank_;
  bool is_single_;
  std::vector<Piece> pieces_;
};

// Elements that a rank owns. Ranges ascend; over all ranks they cover the flat array exactly once.
std::vector<ElementRange> owned_ranges(const ShardPlan& plan, int rank);

}  // namespace tessera
