#include "comm/store/store_wire.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "comm/ranks/world.h"

namespace tessera::wire {
namespace {

constexpr std::string_view kMagic = "TSTR";
constexpr size_t kMaxTextBytes = 4 << 10;  // keys, names, addresses, messages
constexpr int kMaxInt = std::numeric_limits<int>::max();

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

// Exit codes that a message may carry; any other code is replaced by that of a failed peer.
ExitCode to_exit_code(uint32_t value) {
  constexpr std::array kCodes = {ExitCode::kDone,     ExitCode::kUsage,     ExitCode::kBadData,
                                 ExitCode::kNoInput,  ExitCode::kInternal,  ExitCode::kIoError,
                                 ExitCode::kTryAgain, ExitCode::kBadConfig, ExitCode::kNumerics};
  for (const ExitCode code : kCodes) {
    if (static_cast<uint32_t>(code) == value) return code;
  }
  return ExitCode::kTryAgain;
}

// Appends fields one after another.
class Writer {
 public:
  template <typename Message>
  using Field = const Message&;

  void u32(uint32_t value) { append_number(value); }
  void i64(int64_t value) { append_number(static_cast<uint64_t>(value)); }
  void number(int value, int, int) { i64(value); }
  void flag(bool value) { u32(value ? 1 : 0); }
  void code(ExitCode value) { u32(static_cast<uint32_t>(value)); }
  void text(std::string_view value, size_t = 0) {
    u32(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
  }
  void cut_text(std::string_view value) { text(value.substr(0, kMaxTextBytes)); }
  void bytes(const std::array<std::byte, 32>& value) { text(text_of(value)); }
  template <typename Item, typename Items>
  void list(const Items& items) {
    u32(static_cast<uint32_t>(items.size()));
    for (const auto& each : items) visit_fields(*this, Item(each));
  }

  std::string take() { return std::move(bytes_); }

 private:
  template <typename T>
  void append_number(T value) {
    std::array<std::byte, sizeof(T)> bytes;
    put(bytes.data(), value);
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  std::string bytes_;
};

// Reads fields back; Error(kBadData) if something is missing, left over or out of range.
class Reader {
 public:
  template <typename Message>
  using Field = Message&;

  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  void u32(uint32_t& value) { value = take_number<uint32_t>(take(4).data()); }
  void i64(int64_t& value) { value = static_cast<int64_t>(take_number<uint64_t>(take(8).data())); }
  // In [low, high].
  void number(int& value, int low, int high) {
    int64_t found = 0;
    i64(found);
    if (found < low || found > high) {
      fail(ExitCode::kBadData, "message of the store: expected a number from {} to {}, found {}", low, high,
           found);
    }
    value = static_cast<int>(found);
  }
  void flag(bool& value) { value = next_u32() != 0; }
  void code(ExitCode& value) { value = to_exit_code(next_u32()); }
  void text(std::string& value, size_t max_bytes = kMaxTextBytes) {
    const uint32_t size = next_u32();
    if (size > max_bytes) {
      fail(ExitCode::kBadData, "message of the store: expected a text of at most {}, found {}",
           count_of(static_cast<int64_t>(max_bytes), "byte"), size);
    }
    value = take(size);
  }
  void cut_text(std::string& value) { text(value); }
  void bytes(std::array<std::byte, 32>& value) {
    std::string found;
    text(found, value.size());
    value = decode_bytes(found);
  }
  // Grows with the data present, not with the claimed count.
  template <typename Item, typename Items>
  void list(Items& items) {
    for (uint32_t left = next_u32(); left > 0; --left) {
      Item item;
      visit_fields(*this, item);
      items.insert(items.end(), std::move(item));
    }
  }

  void end() const {
    if (!rest_.empty()) {
      fail(ExitCode::kBadData, "message of the store: {} after its end", count_of(std::ssize(rest_), "byte"));
    }
  }

 private:
  uint32_t next_u32() {
    uint32_t value = 0;
    u32(value);
    return value;
  }
  std::string_view take(size_t size) {
    if (size > rest_.size()) {
      fail(ExitCode::kBadData, "message of the store cut short: expected {}, found {}",
           count_of(static_cast<int64_t>(size), "more byte"), rest_.size());
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_;
};

// The fields of every message in their order on the wire. cut_text: shortened to what the reader takes.
template <typename Archive, typename Message>
using Field = typename Archive::template Field<Message>;

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Key> message) {
  archive.text(message.key);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, KeyValue> message) {
  archive.text(message.key);
  archive.text(message.value, kMaxBodyBytes);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, KeyAmount> message) {
  archive.text(message.key);
  archive.i64(message.amount);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Cancellation> message) {
  archive.u32(message.request);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Proof> message) {
  archive.bytes(message.nonce);
  archive.bytes(message.mac);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, JoinRequest> request) {
  archive.number(request.restart_count, 0, kMaxInt);
  archive.number(request.world_size, 1, kMaxRanks);
  archive.number(request.local_world_size, 1, kMaxRanks);
  archive.flag(request.is_agent);
  archive.number(request.rank, -1, kMaxRanks);
  archive.number(request.node_rank, 0, kMaxRanks);
  archive.text(request.host);
  archive.text(request.address);
  archive.flag(request.address_is_guess);
  archive.i64(request.pid);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, MeetRequest> request) {
  archive.number(request.min_nodes, 1, kMaxRanks);
  archive.number(request.max_nodes, 1, kMaxRanks);
  archive.number(request.local_world_size, 1, kMaxRanks);
  archive.number(request.wanted_rank, -1, kMaxRanks);
  archive.number(request.former_rank, -1, kMaxRanks);
  archive.text(request.host);
  archive.i64(request.pid);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Assignment> assignment) {
  archive.number(assignment.restart_count, 0, kMaxInt);
  archive.number(assignment.node_rank, 0, kMaxRanks);
  archive.number(assignment.num_nodes, 1, kMaxRanks);
  archive.number(assignment.num_failures, 0, kMaxInt);
  if (assignment.node_rank >= assignment.num_nodes) {
    fail(ExitCode::kBadData, "message of the store: node {} of {}", assignment.node_rank,
         assignment.num_nodes);
  }
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Refusal> refusal) {
  archive.flag(refusal.try_again);
  archive.code(refusal.code);
  archive.cut_text(refusal.message);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Failure> failure) {
  archive.number(failure.rank, -1, kMaxRanks);
  archive.cut_text(failure.host);
  archive.cut_text(failure.message);
  archive.code(failure.code);
  archive.flag(failure.is_disruption);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Seat> seat) {
  archive.number(seat.node_rank, 0, kMaxRanks);
  archive.text(seat.host);
  archive.text(seat.address);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Seats> seats) {
  archive.template list<Seat>(seats);
}

using Setting = std::pair<std::string, std::string>;

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Setting> setting) {
  archive.text(setting.first, kMaxBodyBytes);
  archive.text(setting.second, kMaxBodyBytes);
}

template <typename Archive>
void visit_fields(Archive& archive, Field<Archive, Settings> settings) {
  archive.template list<Setting>(settings);
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

std::string encode_bytes(const std::array<std::byte, 32>& bytes) { return std::string(text_of(bytes)); }

std::array<std::byte, 32> decode_bytes(std::string_view body) {
  std::array<std::byte, 32> bytes;
  if (body.size() != bytes.size()) {
    fail(ExitCode::kBadData, "message of the store: expected {} bytes, found {}", bytes.size(), body.size());
  }
  std::memcpy(bytes.data(), body.data(), body.size());
  return bytes;
}

template <typename Message>
std::string Codec<Message>::encode(const Message& message) {
  Writer out;
  visit_fields(out, message);
  return out.take();
}

template <typename Message>
Message Codec<Message>::decode(std::string_view body) {
  Reader in(body);
  Message message;
  visit_fields(in, message);
  in.end();
  return message;
}

template struct Codec<Key>;
template struct Codec<KeyValue>;
template struct Codec<KeyAmount>;
template struct Codec<Cancellation>;
template struct Codec<Proof>;
template struct Codec<JoinRequest>;
template struct Codec<MeetRequest>;
template struct Codec<Assignment>;
template struct Codec<Refusal>;
template struct Codec<Failure>;
template struct Codec<Seats>;
template struct Codec<Settings>;

}  // namespace tessera::wire
