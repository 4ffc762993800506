// Rows that appear while they are used: in blocks of equal size, the last one shorter.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

class RowSupply {
 public:
  virtual ~RowSupply() = default;
  virtual int64_t block_rows() const = 0;
  // Waits until the block is there, and returns its rows: fewer than block_rows() in the last block, 0 beyond
  // it.
  virtual int64_t wait_for_block(int64_t block) const = 0;
  // The rows of all blocks, once wait_for_block() has met the last one or what is beyond it.
  virtual std::optional<int64_t> num_rows() const = 0;
};

}  // namespace tessera
