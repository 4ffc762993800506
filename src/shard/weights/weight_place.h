// The place of the weights, and how a group of them is made available when it is opened.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "io/async_file.h"
#include "model/parameter_access.h"
#include "optim/state_file.h"
#include "tensor/tensor_view.h"

namespace tessera {

class WeightPlace {
 public:
  // Makes a share of the packed forms of a group whose elements are at `weights`.
  using PackShare = std::function<void(int64_t group, std::byte* weights)>;
  enum class Access { kRead, kWrite };
  // `index`: where memory() has elements [begin, begin + count) during the visit; in_file: where a file has
  // them as well, or null.
  using Visit = FunctionRef<void(int64_t index, int64_t begin, int64_t count, const FileBytes* in_file)>;

  virtual ~WeightPlace() = default;

  // See ParameterAccess.
  virtual std::byte* open(int64_t group, WeightUse use) = 0;
  virtual void close(int64_t /*group*/) {}
  virtual void reserve_packed_forms(std::span<const int64_t> bytes_by_group, PackShare pack_share);
  virtual std::byte* packed_forms(int64_t /*group*/) { return nullptr; }
  // Memory of the host that open() returns parts of.
  virtual std::vector<std::span<std::byte>> opened_memory() const { return {}; }

  // The memory that this rank updates, and the index in it of an element of its part of a group. A group in a
  // file is there only while it is open.
  virtual TensorView memory() const = 0;
  virtual int64_t index(int64_t group, int64_t element) const = 0;

  // This rank's part of a group, which is open or always in memory, has new values.
  virtual void written(int64_t /*group*/) {}
  // Collective: announces them. Call it for every group, in ascending order, once no rank uses the old
  // values; then finish_updates().
  virtual void updated(int64_t /*group*/) {}
  // Data derived from the old weights is out of date.
  virtual void finish_updates() {}
  // Collective, after all parts were written through visit(): `whole_node` if by the ranks of each node.
  virtual void loaded(bool whole_node) = 0;

  // Visits elements of this rank's part of a group outside of a pass, from one or several threads: for what
  // is in a file, piece by piece under a lock. kWrite keeps what the visitor leaves there.
  virtual void visit(Access /*access*/, int64_t group, int64_t begin, int64_t count, Visit body) const {
    body(index(group, begin), begin, count, nullptr);
  }
  // Transfers of the passes.
  virtual AsyncFileStatistics file_statistics() const { return {}; }
};

}  // namespace tessera
