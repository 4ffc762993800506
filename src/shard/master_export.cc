#include "shard/master_export.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

constexpr int64_t kExportElements = kMasterExportBytes / static_cast<int64_t>(sizeof(float));

MasterExport::MasterExport(const ShardPlan& plan, const OwnedPieces& pieces, Communicator& comm)
    : plan_(&plan),
      pieces_(&pieces),
      comm_(&comm),
      memory_(comm.node().allocate("export of masters", kMasterExportBytes)) {
  for (int64_t g = 0; g < plan.num_groups(); ++g) {
    const Part group = plan.group(g), exchanged = plan.exchanged(g);
    // No chunk has elements of both.
    for (const Part& range : {exchanged, Part{exchanged.end, group.end}}) {
      for (int64_t begin = range.begin; begin < range.end; begin += kExportElements) {
        chunks_.push_back({g, {begin, std::min(begin + kExportElements, range.end)}});
      }
    }
  }
}

void MasterExport::share(const Chunk& chunk, const WeightSource& own) {
  const World& world = comm_->world();
  const OpLabel label = {"master weights", chunk.group};
  comm_->node().barrier(label);  // rank 0 has read the previous content
  float* data = memory_.as<float>().data();
  std::vector<Part> byte_parts;
  for (int node = 0; node < world.num_nodes; ++node) {
    const int rank = node * world.local_world_size + world.local_rank;
    const bool is_exchanged = chunk.elements.begin < plan_->exchanged(chunk.group).end;
    const Part common = intersection(chunk.elements, is_exchanged ? plan_->part(chunk.group, rank)
                                                                  : plan_->expert_part(chunk.group, rank));
    const int64_t begin = common.size() == 0 ? 0 : common.begin - chunk.elements.begin;
    const int64_t element_bytes = dtype_bytes(DType::kF32);
    byte_parts.push_back({begin * element_bytes, (begin + common.size()) * element_bytes});
    if (common.size() == 0 || pieces_->find(chunk.group, common.begin) == nullptr) continue;
    own(common.begin, {data + begin, static_cast<size_t>(common.size())});
  }
  if (world.num_nodes > 1) {
    const auto bytes = static_cast<size_t>(chunk.elements.size() * dtype_bytes(DType::kF32));
    comm_->rail().wait(comm_->rail().all_gather({memory_.data(), bytes}, byte_parts, label));
  }
  comm_->node().barrier(label);
}

// Rank 0's view: steps through the chunks as elements are requested.
class MasterExport::Reader {
 public:
  Reader(MasterExport& masters, const WeightSource& own) : masters_(masters), own_(own) {}

  void read(int64_t begin, std::span<float> values) {
    while (!values.empty()) {
      while (next_ == 0 || begin >= current().elements.end) advance();
      const Part& held = current().elements;
      TESSERA_CHECK(begin >= held.begin, "element {} asked for after {}", begin, held.begin);
      const int64_t count = std::min(std::ssize(values), held.end - begin);
      std::copy_n(masters_.memory_.as<float>().begin() + (begin - held.begin), count, values.begin());
      values = values.subspan(static_cast<size_t>(count));
      begin += count;
    }
  }
  // The other ranks expect every chunk to be shared.
  void finish() {
    while (next_ < masters_.chunks_.size()) advance();
  }

 private:
  const Chunk& current() const { return masters_.chunks_[next_ - 1]; }
  void advance() { masters_.share(masters_.chunks_[next_++], own_); }

  MasterExport& masters_;
  const WeightSource& own_;
  size_t next_ = 0;
};

void MasterExport::run(const WeightSource& own,
                       const std::function<void(const WeightSource& source)>& write) {
  Reader reader(*this, own);
  std::exception_ptr failure;
  if (comm_->world().rank == 0) {
    try {
      write([&reader](int64_t begin, std::span<float> values) { reader.read(begin, values); });
    } catch (...) {
      failure = std::current_exception();
    }
  }
  reader.finish();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
