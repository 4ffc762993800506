#include "comm/network/network_lane.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/network/chunk_count.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "kernels/rank_sum/rank_sum.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

// Chunks end at a multiple of this many elements.
constexpr int64_t kChunkAlignment = kInt8Block;
static_assert(kChunkAlignment % kGradientBlock == 0);
constexpr int64_t kStagingBytes =
    kMaxComputedChunkBytes + kChunkAlignment * static_cast<int64_t>(sizeof(float));

// Receiving in pieces of at most this size lets the checksum read from L1 and L2.
constexpr int64_t kReceiveBytes = 1 << 16;

}  // namespace

Lane::Lane(int number, int num_lanes, const Members& members, std::vector<UniqueFd> sockets,
           FailureDetector& failures)
    : number_(number),
      num_lanes_(num_lanes),
      members_(members),
      sockets_(std::move(sockets)),
      failures_(failures),
      contributions_(members.ranks.size(), static_cast<const float*>(nullptr)) {}

int64_t Lane::buffer_bytes(int num_members) { return num_members * kStagingBytes; }

// ---- What to send and receive

bool Lane::is_reduce() const {
  return operation_->id.collective == Collective::kReduceScatterBf16 ||
         operation_->id.collective == Collective::kReduceScatterF32 ||
         operation_->id.collective == Collective::kReduceScatterOfBf16 || gradient_code();
}

std::optional<GradientCode> Lane::gradient_code() const {
  if (operation_->id.collective == Collective::kReduceScatterInt8) return GradientCode::kInt8;
  if (operation_->id.collective == Collective::kReduceScatterInt4) return GradientCode::kInt4;
  return std::nullopt;
}

int64_t Lane::wire_bytes(int64_t num_elements) const {
  return tessera::wire_bytes(operation_->id.collective, num_elements);
}

int64_t Lane::memory_element_bytes() const {
  if (is_coded() || operation_->id.collective == Collective::kReduceScatterOfBf16) return sizeof(bf16);
  return is_reduce() ? sizeof(float) : 1;
}

// Both sides compute this from the same bounds.
int64_t Lane::num_chunks(const Part& part) const {
  return tessera::num_chunks(wire_bytes(part.size()), is_reduce() || is_coded(), num_lanes_);
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
  return chunks;
}

const Part& Lane::sent_part(int peer) const {
  if (operation_->id.collective == Collective::kBroadcast) return operation_->parts[0];
  return operation_->parts[static_cast<size_t>(is_reduce() ? peer : members_.index)];
}

const Part& Lane::received_part(int peer) const {
  if (operation_->id.collective == Collective::kBroadcast) return operation_->parts[0];
  return operation_->parts[static_cast<size_t>(is_reduce() ? members_.index : peer)];
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
  cursor.finished = true;
}

void Lane::next_message(Cursor& cursor, bool sending) {
  cursor.open = false;
  ++cursor.step;
  settle_on_message(cursor, sending);
}

void Lane::start(const NetworkOperation& operation) {
  operation_ = &operation;
  coded_chunk_ = -1;
  chunks_received_ = number_;
  send_ = {};
  send_.chunk = number_;
  send_.finished = !is_sender();
  receive_ = {};
  receive_.chunk = number_;
  receive_.finished = !is_receiver();
  if (!send_.finished) settle_on_message(send_, true);
  if (!receive_.finished) settle_on_message(receive_, false);
}

// ---- Progress

bool Lane::advance() {
  // Sends first, so that a member that finds others in a different operation has already told them its own.
  const bool sent = advance_send();
  const bool received = advance_receive();
  return received || sent;
}

void Lane::add_polled(std::vector<pollfd>& polled) const {
  if (!receive_.finished) polled.push_back({fd(receive_.peer), POLLIN, 0});
  // A broadcast chunk that has not arrived cannot be passed on.
  if (!send_.finished && send_.open) polled.push_back({fd(send_.peer), POLLOUT, 0});
}

void Lane::open_send() {
  const Range range = chunk_range(sent_part(send_.peer), send_.chunk);
  send_.payload = operation_->data + range.begin * memory_element_bytes();
  send_.payload_bytes = wire_bytes(range.size);
  if (operation_->id.collective == Collective::kReduceScatterBf16) {
    if (send_staging_.data() == nullptr) send_staging_ = PageBuffer(kStagingBytes);
    round_to_bf16(reinterpret_cast<const float*>(send_.payload), send_staging_.as<bf16>().data(), range.size,
                  nullptr);
    send_.payload = send_staging_.data();
  } else if (const std::optional<GradientCode> code = gradient_code()) {
    if (send_staging_.data() == nullptr) send_staging_ = PageBuffer(kStagingBytes);
    const GradientFeedback& feedback = operation_->feedback;
    bf16* const errors = feedback.errors + range.begin;
    encode_gradient_blocks(*code, reinterpret_cast<const float*>(send_.payload), errors, range.size,
                           send_staging_.data(), feedback.keeps_errors ? nullptr : errors);
    send_.payload = send_staging_.data();
  } else if (is_coded()) {
    // The same for all members, one after the other.
    if (send_staging_.data() == nullptr) send_staging_ = PageBuffer(kStagingBytes);
    if (std::exchange(coded_chunk_, send_.chunk) != send_.chunk) {
      encode_int8_blocks(reinterpret_cast<const bf16*>(send_.payload), range.size, send_staging_.data());
    }
    send_.payload = send_staging_.data();
  }
  send_.header =
      make_header(operation_->id, send_.chunk, {send_.payload, static_cast<size_t>(send_.payload_bytes)});
  send_.header_done = 0;
  send_.payload_done = 0;
  send_.open = true;
}

bool Lane::advance_send() {
  bool moved = false;
  while (!send_.finished) {
    if (!send_.open) {
      const bool passes_on = operation_->id.collective == Collective::kBroadcast && is_receiver();
      if (passes_on && chunks_received_ <= send_.chunk) return moved;
      open_send();
    }
    constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(WireHeader));
    iovec pieces[2] = {
        {reinterpret_cast<std::byte*>(&send_.header) + send_.header_done,
         static_cast<size_t>(kHeaderBytes - send_.header_done)},
        {send_.payload + send_.payload_done, static_cast<size_t>(send_.payload_bytes - send_.payload_done)}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    const ssize_t sent = ::sendmsg(fd(send_.peer), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EAGAIN || errno == EINTR) return moved;
      lost(send_, "sent", std::strerror(errno));
    }
    moved = true;
    const int64_t of_header = std::min<int64_t>(sent, kHeaderBytes - send_.header_done);
    send_.header_done += of_header;
    send_.payload_done += sent - of_header;
    send_.total_done += sent - of_header;
    if (send_.header_done < kHeaderBytes || send_.payload_done < send_.payload_bytes) continue;
    counters_.sent_bytes.fetch_add(send_.payload_bytes, std::memory_order_relaxed);
    next_message(send_, true);
    // Let the other direction have its turn.
    return true;
  }
  return moved;
}

std::byte* Lane::contribution(int member) const { return receive_staging_.data() + member * kStagingBytes; }

void Lane::open_receive() {
  const Range range = chunk_range(received_part(receive_.peer), receive_.chunk);
  receive_.payload_bytes = wire_bytes(range.size);
  if (is_reduce() || is_coded()) {
    if (receive_staging_.data() == nullptr) receive_staging_ = PageBuffer(members_.size() * kStagingBytes);
    receive_.payload = contribution(receive_.peer);
  } else {
    receive_.payload = operation_->data + range.begin;
  }
  receive_.header_done = 0;
  receive_.payload_done = 0;
  receive_.crc = 0;
  receive_.open = true;
}

bool Lane::advance_receive() {
  bool moved = false;
  while (!receive_.finished) {
    if (!receive_.open) open_receive();
    constexpr auto kHeaderBytes = static_cast<int64_t>(sizeof(WireHeader));
    const bool in_header = receive_.header_done < kHeaderBytes;
    if (in_header || receive_.payload_done < receive_.payload_bytes) {
      std::byte* to = in_header ? reinterpret_cast<std::byte*>(&receive_.header) + receive_.header_done
                                : receive_.payload + receive_.payload_done;
      const int64_t want = in_header
                               ? kHeaderBytes - receive_.header_done
                               : std::min(kReceiveBytes, receive_.payload_bytes - receive_.payload_done);
      const ssize_t got = ::recv(fd(receive_.peer), to, static_cast<size_t>(want), MSG_DONTWAIT);
      if (got == 0) lost(receive_, "received", "it closed the connection");
      if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return moved;
        lost(receive_, "received", std::strerror(errno));
      }
      moved = true;
      if (in_header) {
        receive_.header_done += got;
        if (receive_.header_done == kHeaderBytes) check_header();
        if (receive_.payload_bytes > 0) continue;
      } else {
        receive_.crc = crc32c(receive_.crc, {to, static_cast<size_t>(got)});
        receive_.payload_done += got;
        receive_.total_done += got;
      }
    }
    if (receive_.header_done < kHeaderBytes || receive_.payload_done < receive_.payload_bytes) continue;
    close_receive();
    return true;
  }
  return moved;
}

void Lane::check_header() {
  const int rank = members_.ranks[static_cast<size_t>(receive_.peer)];
  if (!is_intact(receive_.header)) {
    failures_.fail_because(
        rank, fmt::format("{} sent a corrupted message to {} in {}: the network or the memory of "
                          "a host corrupts data",
                          name(receive_.peer), name(members_.index), describe(operation_->id)));
  }
  if (!matches(receive_.header, operation_->id, receive_.chunk, receive_.payload_bytes)) {
    failures_.fail_because(
        rank, describe_mismatch(operation_->id, name(members_.index), receive_.header, name(receive_.peer)),
        ExitCode::kInternal);
  }
}

void Lane::close_receive() {
  if (receive_.crc != receive_.header.payload_crc) {
    failures_.fail_because(
        members_.ranks[static_cast<size_t>(receive_.peer)],
        fmt::format(
            "{} from {} to {} in {} arrived corrupted: CRC32C {:08x} sent, {:08x} received; the network "
            "or the memory of a host corrupts data",
            count_of(receive_.payload_bytes, "byte"), name(receive_.peer), name(members_.index),
            describe(operation_->id), receive_.header.payload_crc, receive_.crc));
  }
  counters_.received_bytes.fetch_add(receive_.payload_bytes, std::memory_order_relaxed);
  if (is_reduce() && receive_.step == num_steps()) sum_chunk();
  if (is_coded()) decode_chunk();
  if (!is_reduce()) chunks_received_ = receive_.chunk + num_lanes_;
  next_message(receive_, false);
}

// Called once all members' contributions to the chunk have arrived.
void Lane::sum_chunk() {
  const Range range = chunk_range(operation_->parts[static_cast<size_t>(members_.index)], receive_.chunk);
  if (gradient_code() || operation_->id.collective == Collective::kReduceScatterOfBf16) {
    return sum_coded_chunk(range);
  }
  float* const own = reinterpret_cast<float*>(operation_->data) + range.begin;
  for (int member = 0; member < members_.size(); ++member) {
    RankInput& input = contributions_[static_cast<size_t>(member)];
    if (member == members_.index) {
      input = own;
    } else if (operation_->id.collective == Collective::kReduceScatterBf16) {
      input = reinterpret_cast<const bf16*>(contribution(member));
    } else {
      input = reinterpret_cast<const float*>(contribution(member));
    }
  }
  rank_sum(contributions_, Update::kOverwrite, own, range.size, nullptr);
}

void Lane::sum_coded_chunk(const Range& range) {
  const auto blocks = [&](int member) -> const std::byte* {
    return member == members_.index ? nullptr : contribution(member);
  };
  if (const std::optional<GradientCode> code = gradient_code()) {
    const GradientFeedback& feedback = operation_->feedback;
    sum_gradient_blocks(*code, members_.size(), blocks,
                        feedback.adds_own_errors ? feedback.errors + range.begin : nullptr,
                        reinterpret_cast<float*>(operation_->data) + range.begin, range.size);
  } else {
    sum_bf16(members_.size(), blocks, reinterpret_cast<bf16*>(operation_->data) + range.begin, range.size);
  }
}

void Lane::decode_chunk() {
  const Range range = chunk_range(received_part(receive_.peer), receive_.chunk);
  decode_int8_blocks(receive_.payload, range.size, reinterpret_cast<bf16*>(operation_->data) + range.begin);
}

// ---- Failures

void Lane::lost(const Cursor& cursor, const char* verb, const std::string& reason) const {
  failures_.fail_because(members_.ranks[static_cast<size_t>(cursor.peer)],
                         fmt::format("{} is gone: {}; {} had {} {} on connection {} in {}", name(cursor.peer),
                                     reason, name(members_.index), verb, count_of(cursor.total_done, "byte"),
                                     number_, describe(operation_->id)));
}

void Lane::fail_at_deadline(double seconds) const {
  const Cursor& cursor = receive_.finished ? send_ : receive_;
  const char* what = receive_.finished ? "takes no more data from" : "sends no more data to";
  failures_.fail_because(
      members_.ranks[static_cast<size_t>(cursor.peer)],
      fmt::format(
          "{} {} {}: {} has not finished after {:.1f} s; connection {} has {} of this message of {}, {} of "
          "the operation",
          name(cursor.peer), what, name(members_.index), describe(operation_->id), seconds, number_,
          count_of(cursor.payload_done, "byte"), cursor.payload_bytes, cursor.total_done));
}

}  // namespace tessera
