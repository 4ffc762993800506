#include "comm/store/store_wire.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "comm/world.h"

namespace tessera::wire {
namespace {

constexpr std::string_view kMagic = "TSTR";
constexpr size_t kMaxTextBytes = 4 << 10;  // names, addresses, messages

template <typename T>
void put(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <typename T>
T take_number(const char* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(static_cast<unsigned char>(from[i])) << (8 * i)));
  }
  return value;
}

// Exit codes that a message may carry; anything else becomes that of a failed peer.
ExitCode to_exit_code(uint32_t value) {
  constexpr std::array kCodes = {ExitCode::kDone,     ExitCode::kUsage,     ExitCode::kBadData,
                                 ExitCode::kNoInput,  ExitCode::kInternal,  ExitCode::kIoError,
                                 ExitCode::kTryAgain, ExitCode::kBadConfig, ExitCode::kNumerics};
  for (const ExitCode code : kCodes) {
    if (static_cast<uint32_t>(code) == value) return code;
  }
  return ExitCode::kTryAgain;
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode_header(const Header& header) {
  std::array<std::byte, kHeaderBytes> bytes;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put<uint16_t>(bytes.data() + 4, header.version);
  put<uint16_t>(bytes.data() + 6, static_cast<uint16_t>(header.type));
  put<uint32_t>(bytes.data() + 8, header.request);
  put<uint32_t>(bytes.data() + 12, header.body_bytes);
  return bytes;
}

Header decode_header(std::span<const std::byte, kHeaderBytes> bytes) {
  const char* const from = reinterpret_cast<const char*>(bytes.data());
  if (std::string_view(from, kMagic.size()) != kMagic) fail(ExitCode::kBadData, "not a message of the store");
  return {.version = take_number<uint16_t>(from + 4),
          .type = static_cast<Type>(take_number<uint16_t>(from + 6)),
          .request = take_number<uint32_t>(from + 8),
          .body_bytes = take_number<uint32_t>(from + 12)};
}

void Writer::u32(uint32_t value) {
  std::array<std::byte, 4> bytes;
  put(bytes.data(), value);
  bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void Writer::i64(int64_t value) {
  std::array<std::byte, 8> bytes;
  put(bytes.data(), static_cast<uint64_t>(value));
  bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void Writer::text(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  bytes_.append(value);
}

std::string_view Reader::take(size_t size) {
  if (size > rest_.size()) {
    fail(ExitCode::kBadData, "message of the store cut short: expected {}, found {}",
         count_of(static_cast<int64_t>(size), "more byte"), rest_.size());
  }
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint32_t Reader::u32() { return take_number<uint32_t>(take(4).data()); }

int64_t Reader::i64() { return static_cast<int64_t>(take_number<uint64_t>(take(8).data())); }

int Reader::ranged(int low, int high) {
  const int64_t value = i64();
  if (value < low || value > high) {
    fail(ExitCode::kBadData, "message of the store: expected a number from {} to {}, found {}", low, high,
         value);
  }
  return static_cast<int>(value);
}

std::string Reader::text(size_t max_bytes) {
  const uint32_t size = u32();
  if (size > max_bytes) {
    fail(ExitCode::kBadData, "message of the store: expected a text of at most {}, found {}",
         count_of(static_cast<int64_t>(max_bytes), "byte"), size);
  }
  return std::string(take(size));
}

void Reader::end() const {
  if (!rest_.empty()) {
    fail(ExitCode::kBadData, "message of the store: {} after its end", count_of(std::ssize(rest_), "byte"));
  }
}

std::string JoinRequest::encode() const {
  Writer out;
  out.text(run_id);
  out.i64(restart_count);
  out.i64(world_size);
  out.i64(local_world_size);
  out.u32(is_agent ? 1 : 0);
  out.i64(rank);
  out.i64(node_rank);
  out.text(host);
  out.text(address);
  out.u32(address_is_guess ? 1 : 0);
  out.i64(pid);
  return out.take();
}

JoinRequest JoinRequest::decode(std::string_view body) {
  Reader in(body);
  JoinRequest request;
  request.run_id = in.text(kMaxTextBytes);
  request.restart_count = in.ranged(0, std::numeric_limits<int>::max());
  request.world_size = in.ranged(1, kMaxRanks);
  request.local_world_size = in.ranged(1, kMaxRanks);
  request.is_agent = in.u32() != 0;
  request.rank = in.ranged(-1, kMaxRanks);
  request.node_rank = in.ranged(0, kMaxRanks);
  request.host = in.text(kMaxTextBytes);
  request.address = in.text(kMaxTextBytes);
  request.address_is_guess = in.u32() != 0;
  request.pid = in.i64();
  in.end();
  return request;
}

std::string MeetRequest::encode() const {
  Writer out;
  out.text(run_id);
  for (const int number : {min_nodes, max_nodes, local_world_size, wanted_rank, former_rank}) out.i64(number);
  out.text(host);
  out.i64(pid);
  return out.take();
}

MeetRequest MeetRequest::decode(std::string_view body) {
  Reader in(body);
  MeetRequest request;
  request.run_id = in.text(kMaxTextBytes);
  request.min_nodes = in.ranged(1, kMaxRanks);
  request.max_nodes = in.ranged(1, kMaxRanks);
  request.local_world_size = in.ranged(1, kMaxRanks);
  request.wanted_rank = in.ranged(-1, kMaxRanks);
  request.former_rank = in.ranged(-1, kMaxRanks);
  request.host = in.text(kMaxTextBytes);
  request.pid = in.i64();
  in.end();
  return request;
}

std::string Assignment::encode() const {
  Writer out;
  for (const int number : {restart_count, node_rank, num_nodes, num_failures}) out.i64(number);
  return out.take();
}

Assignment Assignment::decode(std::string_view body) {
  Reader in(body);
  Assignment assignment;
  assignment.restart_count = in.ranged(0, std::numeric_limits<int>::max());
  assignment.node_rank = in.ranged(0, kMaxRanks);
  assignment.num_nodes = in.ranged(1, kMaxRanks);
  assignment.num_failures = in.ranged(0, std::numeric_limits<int>::max());
  in.end();
  if (assignment.node_rank >= assignment.num_nodes) {
    fail(ExitCode::kBadData, "message of the store: node {} of {}", assignment.node_rank,
         assignment.num_nodes);
  }
  return assignment;
}

std::string Refusal::encode() const {
  Writer out;
  out.u32(try_again ? 1 : 0);
  out.u32(static_cast<uint32_t>(code));
  out.text(std::string_view(message).substr(0, kMaxTextBytes));
  return out.take();
}

Refusal Refusal::decode(std::string_view body) {
  Reader in(body);
  Refusal refusal;
  refusal.try_again = in.u32() != 0;
  refusal.code = to_exit_code(in.u32());
  refusal.message = in.text(kMaxTextBytes);
  in.end();
  return refusal;
}

std::string encode_seats(std::span<const Seat> seats) {
  Writer out;
  out.u32(static_cast<uint32_t>(seats.size()));
  for (const Seat& seat : seats) {
    out.i64(seat.node_rank);
    out.text(seat.host);
    out.text(seat.address);
  }
  return out.take();
}

std::vector<Seat> decode_seats(std::string_view body) {
  Reader in(body);
  std::vector<Seat> seats;
  // Grows with the data present, not with the claimed count.
  for (uint32_t left = in.u32(); left > 0; --left) {
    Seat seat;
    seat.node_rank = in.ranged(0, kMaxRanks);
    seat.host = in.text(kMaxTextBytes);
    seat.address = in.text(kMaxTextBytes);
    seats.push_back(std::move(seat));
  }
  in.end();
  return seats;
}

std::string encode_failure(const Failure& failure) {
  Writer out;
  out.i64(failure.rank);
  out.text(std::string_view(failure.host).substr(0, kMaxTextBytes));
  out.text(std::string_view(failure.message).substr(0, kMaxTextBytes));
  out.u32(static_cast<uint32_t>(failure.code));
  out.u32(failure.is_disruption ? 1 : 0);
  return out.take();
}

Failure decode_failure(std::string_view body) {
  Reader in(body);
  Failure failure;
  failure.rank = in.ranged(-1, kMaxRanks);
  failure.host = in.text(kMaxTextBytes);
  failure.message = in.text(kMaxTextBytes);
  failure.code = to_exit_code(in.u32());
  failure.is_disruption = in.u32() != 0;
  in.end();
  return failure;
}

std::string encode_settings(const std::map<std::string, std::string>& settings) {
  Writer out;
  out.u32(static_cast<uint32_t>(settings.size()));
  for (const auto& [name, value] : settings) {
    out.text(name);
    out.text(value);
  }
  return out.take();
}

std::map<std::string, std::string> decode_settings(std::string_view body) {
  Reader in(body);
  std::map<std::string, std::string> settings;
  for (uint32_t left = in.u32(); left > 0; --left) {
    std::string name = in.text();
    settings[std::move(name)] = in.text();
  }
  in.end();
  return settings;
}

}  // namespace tessera::wire
