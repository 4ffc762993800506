#include "checkpoint/piece_queue.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/piece_codec.h"

namespace tessera {

std::byte* SnapshotRing::allocate(int64_t size_bytes) {
  size_bytes = round_up(size_bytes, kCacheLineBytes);
  int64_t begin = slots_.empty() ? 0 : slots_.back().end;
  const int64_t oldest = slots_.empty() ? 0 : slots_.front().begin;
  const bool is_wrapped = !slots_.empty() && slots_.back().begin < oldest;
  if (!is_wrapped && memory_.size_bytes() - begin < size_bytes) {
    if (oldest < size_bytes || slots_.empty()) return nullptr;
    begin = 0;
  } else if (is_wrapped && oldest - begin < size_bytes) {
    return nullptr;
  }
  slots_.push_back({begin, begin + size_bytes, false});
  return memory_.data() + begin;
}

void SnapshotRing::release(const std::byte* memory) {
  const int64_t begin = memory - memory_.data();
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.begin == begin && !s.released; });
  TESSERA_CHECK(slot != slots_.end(), "offset {}", begin);
  slot->released = true;
  while (!slots_.empty() && slots_.front().released) slots_.pop_front();
}

PieceQueue::PieceQueue(std::vector<ParameterPiece> pieces, const StoredParts& parts, int64_t snapshot_bytes)
    : pieces_(std::move(pieces)),
      parts_(parts),
      states_(pieces_.size(), State::kPending),
      captured_(pieces_.size(), nullptr),
      ring_(snapshot_bytes) {}

std::optional<size_t> PieceQueue::choose() const {
  for (size_t i = wanted_begin_; i < wanted_end_; ++i) {
    if (states_[i] == State::kPending) return i;
  }
  for (size_t i = first_unwritten_; i < states_.size(); ++i) {
    if (states_[i] == State::kPending || states_[i] == State::kCaptured) return i;
  }
  return std::nullopt;
}

std::optional<PieceQueue::Work> PieceQueue::next() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (closed_ || first_unwritten_ == states_.size()) return std::nullopt;
    if (const auto index = choose()) {
      if (states_[*index] == State::kCaptured) {
        states_[*index] = State::kRead;
        return Work{*index, captured_[*index]};
      }
      states_[*index] = State::kReading;
      return Work{*index, nullptr};
    }
    changed_.wait(lock);
  }
}

void PieceQueue::set_read(size_t index) {
  const std::lock_guard lock(mutex_);
  states_[index] = State::kRead;
  changed_.notify_all();
}

void PieceQueue::set_written(size_t index) {
  const std::lock_guard lock(mutex_);
  states_[index] = State::kWritten;
  if (captured_[index] != nullptr) ring_.release(std::exchange(captured_[index], nullptr));
  while (first_unwritten_ < states_.size() && states_[first_unwritten_] == State::kWritten)
    ++first_unwritten_;
  changed_.notify_all();
}

void PieceQueue::sleep_until(std::chrono::steady_clock::time_point time) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, time, [&] { return hurried_ || closed_ || wanted_begin_ < wanted_end_; });
}

std::vector<PieceQueue::Capture> PieceQueue::claim(ElementRange elements) {
  const auto first = std::partition_point(pieces_.begin(), pieces_.end(), [&](const ParameterPiece& piece) {
    return piece.flat_end() <= elements.begin;
  });
  const auto last = std::partition_point(
      first, pieces_.end(), [&](const ParameterPiece& piece) { return piece.flat_begin() < elements.end; });
  const auto begin = static_cast<size_t>(first - pieces_.begin());
  const auto end = static_cast<size_t>(last - pieces_.begin());
  std::vector<Capture> captures;
  std::unique_lock lock(mutex_);
  while (!closed_) {
    bool all_read = true;
    for (size_t i = begin; i < end; ++i) {
      if (states_[i] == State::kReading) all_read = false;
      if (states_[i] != State::kPending) continue;
      all_read = false;
      std::byte* memory = ring_.allocate(encoded_sizes(pieces_[i], parts_).total_bytes);
      if (memory == nullptr) break;
      states_[i] = State::kReading;
      captured_[i] = memory;
      captures.push_back({i, memory});
    }
    if (all_read || !captures.empty()) break;
    wanted_begin_ = begin;
    wanted_end_ = end;
    changed_.notify_all();
    changed_.wait(lock);
  }
  wanted_begin_ = wanted_end_ = 0;
  return captures;
}

void PieceQueue::set_captured(const std::vector<Capture>& captures) {
  const std::lock_guard lock(mutex_);
  for (const Capture& capture : captures) states_[capture.index] = State::kCaptured;
  changed_.notify_all();
}

void PieceQueue::hurry() {
  const std::lock_guard lock(mutex_);
  hurried_ = true;
  changed_.notify_all();
}

void PieceQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool PieceQueue::is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace tessera
