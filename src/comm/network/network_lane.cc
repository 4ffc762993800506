#include "comm/network/network_lane.h"

#include <algorithm>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/network/link/chunk_count.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "kernels/rank_sum/rank_sum.h"

namespace tessera {
namespace {

// Chunks end at a multiple of this many elements.
constexpr int64_t kChunkAlignment = kInt8Block;
static_assert(kChunkAlignment % kGradientBlock == 0);
constexpr int64_t kStagingBytes =
    kMaxComputedChunkBytes + kChunkAlignment * static_cast<int64_t>(sizeof(float));

}  // namespace

Lane::Lane(int number, int num_lanes, const Members& members, std::unique_ptr<LaneLink> link,
           FailureDetector& failures)
    : number_(number),
      num_lanes_(num_lanes),
      members_(members),
      failures_(failures),
      coded_chunk_(static_cast<size_t>(link->window()), -1),
      payloads_(members.ranks.size()),
      contributions_(members.ranks.size(), static_cast<const float*>(nullptr)),
      sends_(link->window()),
      receives_(link->window()),
      link_(std::move(link)) {}

// A chunk is summed once all other members' chunks are there; by then the first of the next ones may be
// there, too.
int64_t Lane::num_receive_slots() const { return members_.size() - 2 + std::ssize(receives_.ring); }

int64_t Lane::buffer_bytes(int num_members, int window) {
  return (num_members - 2 + 2 * window) * kStagingBytes;
}

// ---- What to send and receive

// Rather than its own part to all others.
bool Lane::sends_every_part() const {
  return kind().sums || operation_->id.collective == Collective::kAllToAll;
}

int64_t Lane::wire_bytes(int64_t num_elements) const {
  return tessera::wire_bytes(operation_->id.collective, num_elements);
}

// Both sides compute this from the same bounds.
int64_t Lane::num_chunks(const Part& part) const {
  return tessera::num_chunks(wire_bytes(part.size()), kind().sums || is_coded(), num_lanes_);
}

Lane::Range Lane::chunk_range(const Part& part, int64_t chunk) const {
  const int64_t count = num_chunks(part);
  const int64_t each = round_up(divide_up(part.size(), count), kChunkAlignment);
  const int64_t begin = std::min(part.size(), chunk * each);
  return {part.begin + begin, std::min(part.size() - begin, each)};
}

int64_t Lane::max_chunks() const {
  int64_t chunks = 0;
  for (const Part& part : operation_->parts) chunks = std::max(chunks, num_chunks(part));
  for (const Part& part : operation_->received_parts) chunks = std::max(chunks, num_chunks(part));
  return chunks;
}

const Part& Lane::sent_part(int peer) const {
  if (operation_->id.collective == Collective::kBroadcast) return operation_->parts[0];
  return operation_->parts[static_cast<size_t>(sends_every_part() ? peer : members_.index)];
}

const Part& Lane::received_part(int peer) const {
  if (operation_->id.collective == Collective::kBroadcast) return operation_->parts[0];
  if (operation_->id.collective == Collective::kAllToAll)
    return operation_->received_parts[static_cast<size_t>(peer)];
  return operation_->parts[static_cast<size_t>(kind().sums ? members_.index : peer)];
}

int Lane::num_steps() const {
  return operation_->id.collective == Collective::kBroadcast ? 1 : members_.size() - 1;
}

bool Lane::is_sender() const {
  return operation_->id.collective != Collective::kBroadcast ||
         (members_.index + 1) % members_.size() != operation_->id.root;
}

bool Lane::is_receiver() const {
  return operation_->id.collective != Collective::kBroadcast || members_.index != operation_->id.root;
}

void Lane::settle_on_message(Cursor& cursor, bool sending) {
  const int size = members_.size();
  const int64_t end = max_chunks();
  for (; cursor.chunk < end; cursor.chunk += num_lanes_, cursor.step = 1) {
    for (; cursor.step <= num_steps(); ++cursor.step) {
      cursor.peer = (members_.index + (sending ? cursor.step : size - cursor.step)) % size;
      if (cursor.chunk < num_chunks(sending ? sent_part(cursor.peer) : received_part(cursor.peer))) return;
    }
  }
  cursor.at_end = true;
}

void Lane::start(const NetworkOperation& operation) {
  operation_ = &operation;
  std::ranges::fill(coded_chunk_, -1);
  chunks_received_ = number_;
  sends_.restart(number_);
  receives_.restart(number_);
  sends_.next.at_end = !is_sender();
  receives_.next.at_end = !is_receiver();
  if (is_sender()) settle_on_message(sends_.next, true);
  if (is_receiver()) settle_on_message(receives_.next, false);
}

// ---- Progress

bool Lane::advance() {
  try {
    // Sends first, so that a member that finds others in a different operation has already sent them its own.
    const bool sent = advance_send();
    const bool received = advance_receive();
    return received || sent;
  } catch (const LinkLoss& loss) {
    lost(loss);
  }
}

std::chrono::microseconds Lane::prepare_wait(std::vector<pollfd>& polled) {
  try {
    return link_->prepare_wait(sends_.is_empty() ? nullptr : &sends_.first().message,
                               receives_.is_empty() ? nullptr : &receives_.first().message, polled);
  } catch (const LinkLoss& loss) {
    lost(loss);
  }
}

// Rounded or coded, in memory that stays until the message is done.
const std::byte* Lane::staged_payload(const Range& range, int64_t chunk, int64_t ordinal) {
  const std::byte* const from = operation_->data + range.begin * kind().element_bytes;
  const bool is_rounded = operation_->id.collective == Collective::kReduceScatterBf16;
  const std::optional<GradientCode> code = kind().gradient_code;
  if (!is_rounded && !code && !is_coded()) return from;
  const int64_t window = std::ssize(sends_.ring);
  if (send_staging_.data() == nullptr) send_staging_ = PageBuffer(window * kStagingBytes);
  if (kind().sums) {
    std::byte* const slot = send_staging_.data() + ordinal % window * kStagingBytes;
    const auto* const values = reinterpret_cast<const float*>(from);
    if (is_rounded) {
      round_to_bf16(values, reinterpret_cast<bf16*>(slot), range.size, nullptr);
    } else {
      const GradientFeedback& feedback = operation_->feedback;
      bf16* const errors = feedback.errors + range.begin;
      encode_gradient_blocks(*code, values, errors, range.size, slot,
                             feedback.keeps_errors ? nullptr : errors);
    }
    return slot;
  }
  // One slot per chunk serves all members, one after the other: the messages of a window belong to that many
  // chunks at most, which follow one another.
  const int64_t number = chunk / num_lanes_ % window;
  std::byte* const slot = send_staging_.data() + number * kStagingBytes;
  if (std::exchange(coded_chunk_[static_cast<size_t>(number)], chunk) != chunk) {
    encode_int8_blocks(reinterpret_cast<const bf16*>(from), range.size, slot);
  }
  return slot;
}

void Lane::begin_send() {
  Cursor& next = sends_.next;
  const int64_t ordinal = sends_.begun;
  Sent& sent = sends_.begin_next();
  const Range range = chunk_range(sent_part(next.peer), next.chunk);
  sent.chunk = next.chunk;
  sent.message.peer = next.peer;
  sent.message.payload_bytes = wire_bytes(range.size);
  sent.message.payload = staged_payload(range, next.chunk, ordinal);
  sent.message.header = make_header(operation_->id, next.chunk,
                                    {sent.message.payload, static_cast<size_t>(sent.message.payload_bytes)});
  link_->begin(sent.message);
  ++next.step;
  settle_on_message(next, true);
}

bool Lane::advance_send() {
  while (!sends_.next.at_end && !sends_.is_full()) {
    const bool passes_on = operation_->id.collective == Collective::kBroadcast && is_receiver();
    if (passes_on && chunks_received_ <= sends_.next.chunk) break;
    begin_send();
  }
  if (sends_.is_empty()) return false;
  OutgoingMessage& message = sends_.first().message;
  const bool moved = link_->advance(message);
  if (!message.done()) return moved;
  counters_.sent_bytes.fetch_add(message.payload_bytes, std::memory_order_relaxed);
  sends_.bytes_done += message.payload_bytes;
  ++sends_.done;
  // Let the other direction have its turn.
  return true;
}

void Lane::begin_receive() {
  Cursor& next = receives_.next;
  const int64_t ordinal = receives_.begun;
  Received& received = receives_.begin_next();
  const Range range = chunk_range(received_part(next.peer), next.chunk);
  received.chunk = next.chunk;
  received.step = next.step;
  received.message.peer = next.peer;
  received.message.payload_bytes = wire_bytes(range.size);
  if (kind().sums || is_coded()) {
    const int64_t slots = num_receive_slots();
    if (receive_staging_.data() == nullptr) receive_staging_ = PageBuffer(slots * kStagingBytes);
    received.message.payload = receive_staging_.data() + ordinal % slots * kStagingBytes;
  } else {
    const bool is_apart = operation_->id.collective == Collective::kAllToAll;
    received.message.payload = (is_apart ? operation_->received : operation_->data) + range.begin;
  }
  link_->begin(received.message);
  ++next.step;
  settle_on_message(next, false);
}

bool Lane::advance_receive() {
  while (!receives_.next.at_end && !receives_.is_full()) begin_receive();
  bool moved = false;
  while (!receives_.is_empty()) {
    Received& received = receives_.first();
    moved |= link_->advance(received.message);
    const bool is_news = received.message.has_header() && !received.is_checked;
    if (is_news) {
      received.is_checked = true;
      check_header(received);
    }
    if (received.message.done()) {
      close_receive(received);
      receives_.bytes_done += received.message.payload_bytes;
      ++receives_.done;
      return true;
    }
    if (!is_news) return moved;
  }
  return moved;
}

void Lane::check_header(const Received& received) {
  const IncomingMessage& message = received.message;
  const int rank = members_.ranks[static_cast<size_t>(message.peer)];
  if (!is_intact(message.header)) {
    failures_.fail_because(
        rank, fmt::format("{} sent a corrupted message to {} in {}: the network or the memory of "
                          "a host corrupts data",
                          name(message.peer), name(members_.index), describe(operation_->id)));
  }
  if (!matches(message.header, operation_->id, received.chunk, message.payload_bytes)) {
    failures_.fail_because(
        rank, describe_mismatch(operation_->id, name(members_.index), message.header, name(message.peer)),
        ExitCode::kInternal);
  }
}

void Lane::close_receive(const Received& received) {
  const IncomingMessage& message = received.message;
  if (message.crc != message.header.payload_crc) {
    failures_.fail_because(
        members_.ranks[static_cast<size_t>(message.peer)],
        fmt::format(
            "{} from {} to {} in {} arrived corrupted: CRC32C {:08x} sent, {:08x} received; the network "
            "or the memory of a host corrupts data",
            count_of(message.payload_bytes, "byte"), name(message.peer), name(members_.index),
            describe(operation_->id), message.header.payload_crc, message.crc));
  }
  counters_.received_bytes.fetch_add(message.payload_bytes, std::memory_order_relaxed);
  if (kind().sums) payloads_[static_cast<size_t>(message.peer)] = message.payload;
  if (kind().sums && received.step == num_steps()) sum_chunk(received.chunk);
  if (is_coded()) decode_chunk(received);
  if (!kind().sums) chunks_received_ = received.chunk + num_lanes_;
}

// Called once all members' contributions to the chunk have arrived.
void Lane::sum_chunk(int64_t chunk) {
  const Range range = chunk_range(operation_->parts[static_cast<size_t>(members_.index)], chunk);
  if (kind().gradient_code || operation_->id.collective == Collective::kReduceScatterOfBf16) {
    return sum_coded_chunk(range);
  }
  float* const own = reinterpret_cast<float*>(operation_->data) + range.begin;
  for (size_t member = 0; member < payloads_.size(); ++member) {
    if (operation_->id.collective == Collective::kReduceScatterBf16) {
      contributions_[member] = reinterpret_cast<const bf16*>(payloads_[member]);
    } else {
      contributions_[member] = reinterpret_cast<const float*>(payloads_[member]);
    }
  }
  contributions_[static_cast<size_t>(members_.index)] = own;
  rank_sum(contributions_, Update::kOverwrite, own, range.size, nullptr);
}

void Lane::sum_coded_chunk(const Range& range) {
  const auto payload = [&](int member) { return payloads_[static_cast<size_t>(member)]; };
  if (const std::optional<GradientCode> code = kind().gradient_code) {
    const GradientFeedback& feedback = operation_->feedback;
    sum_gradient_blocks(*code, members_.size(), payload,
                        feedback.adds_own_errors ? feedback.errors + range.begin : nullptr,
                        reinterpret_cast<float*>(operation_->data) + range.begin, range.size);
  } else {
    sum_bf16(members_.size(), payload, reinterpret_cast<bf16*>(operation_->data) + range.begin, range.size);
  }
}

void Lane::decode_chunk(const Received& received) {
  const Range range = chunk_range(received_part(received.message.peer), received.chunk);
  decode_int8_blocks(received.message.payload, range.size,
                     reinterpret_cast<bf16*>(operation_->data) + range.begin);
}

// ---- Failures

void Lane::lost(const LinkLoss& loss) const {
  // Payload of the operation so far, with what has moved of the earliest message.
  const int64_t bytes =
      loss.while_sending
          ? sends_.bytes_done + (sends_.is_empty() ? 0 : sends_.first().message.payload_done)
          : receives_.bytes_done + (receives_.is_empty() ? 0 : receives_.first().message.payload_done);
  failures_.fail_because(
      members_.ranks[static_cast<size_t>(loss.peer)],
      fmt::format("{} is gone: {}; {} had {} {} on connection {} in {}", name(loss.peer), loss.reason,
                  name(members_.index), loss.while_sending ? "sent" : "received", count_of(bytes, "byte"),
                  number_, describe(operation_->id)));
}

void Lane::fail_at_deadline(double seconds) const {
  int peer = -1;
  int64_t done = 0, of = 0, before = 0;
  const auto look_at = [&](const auto& window) {
    peer = window.is_empty() ? window.next.peer : window.first().message.peer;
    done = window.is_empty() ? 0 : window.first().message.payload_done;
    of = window.is_empty() ? 0 : window.first().message.payload_bytes;
    before = window.bytes_done;
  };
  const bool is_sending = receives_.finished();
  if (is_sending) {
    look_at(sends_);
  } else {
    look_at(receives_);
  }
  failures_.fail_because(
      members_.ranks[static_cast<size_t>(peer)],
      fmt::format(
          "{} {} {}: {} has not finished after {:.1f} s; connection {} has {} of this message of {}, {} of "
          "the operation",
          name(peer), is_sending ? "takes no more data from" : "sends no more data to", name(members_.index),
          describe(operation_->id), seconds, number_, count_of(done, "byte"), of, before + done));
}

}  // namespace tessera
