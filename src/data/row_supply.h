// Rows that appear while they are used: in blocks of equal size, the last one shorter.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

class RowSupply {
 public:
  virtual ~RowSupply() = default;
  virtual int64_t block_rows() const = 0;
  // The rows of a block that is there: fewer than block_rows() in the last one, 0 beyond it. nullopt while it
  // is being made.
  virtual std::optional<int64_t> find_block(int64_t block) const = 0;
  // Waits until find_block() has found it.
  virtual int64_t wait_for_block(int64_t block) const = 0;
  // The rows of all blocks, once the last one or what is beyond it was found, if they can be read again from
  // the first one on.
  virtual std::optional<int64_t> num_rows() const = 0;
  // Releases the blocks before this one: no rank needs them.
  virtual void release_before(int64_t block) const = 0;
};

}  // namespace tessera
