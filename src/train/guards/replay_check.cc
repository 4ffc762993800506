#include "train/guards/replay_check.h"

#include <span>
#include <utility>

#include "base/error.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

// Bytes that a thread checksums at a time.
constexpr int64_t kBlockBytes = 1 << 20;

}  // namespace

ReplayCheck::ReplayCheck(TrainableModel& model, ThreadPool& pool) : model_(model), pool_(pool) {
  model_.watch_layers([this](int64_t layer, const char* part, ConstTensorView values_TD) {
    note(layer < 0 ? part : fmt::format("layer {} {}", layer, part), values_TD);
  });
  model_.watch_gradients([this](const Parameter& parameter, ConstTensorView gradient) {
    note("the gradient of " + parameter.name, gradient);
  });
}

ReplayCheck::~ReplayCheck() {
  model_.watch_layers({});
  model_.watch_gradients({});
}

void ReplayCheck::repeat() {
  TESSERA_CHECK(!repeats_, "a third pass");
  repeats_ = true;
}

std::string ReplayCheck::difference() const {
  TESSERA_CHECK(repeats_ && num_repeated_ == first_.size(), "{} checksums, then {}", first_.size(),
                num_repeated_);
  return difference_;
}

void ReplayCheck::note(std::string name, ConstTensorView values) {
  const auto bytes =
      std::span(values.bytes(), static_cast<size_t>(values.num_elements() * dtype_bytes(values.dtype())));
  of_blocks_.assign(bytes.size() / kBlockBytes + 1, 0);
  pool_.parallel_blocks(std::ssize(bytes), kBlockBytes, [&](int64_t begin, int64_t end) {
    const auto block = bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    of_blocks_[static_cast<size_t>(begin / kBlockBytes)] = crc32c(0, block);
  });
  const uint32_t value = crc32c(0, std::as_bytes(std::span(of_blocks_)));
  if (!repeats_) {
    first_.push_back({std::move(name), value});
    return;
  }
  TESSERA_CHECK(num_repeated_ < first_.size() && first_[num_repeated_].name == name,
                "'{}' is number {} of the second pass", name, num_repeated_);
  if (difference_.empty() && first_[num_repeated_].value != value) difference_ = std::move(name);
  ++num_repeated_;
}

}  // namespace tessera
