// The first byte chooses a message type, the rest is its body. Any bytes are either refused with
// Error(kBadData) or decode to a value that survives a round trip.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "comm/store/store_proof.h"
#include "comm/store/store_wire.h"
#include "support/fuzz_support.h"

namespace {

using tessera::wire::Header;
using tessera::wire::kHeaderBytes;

void check(bool holds) {
  if (!holds) std::abort();
}

void read_header(std::string_view body) {
  std::array<std::byte, kHeaderBytes> bytes{};
  std::memcpy(bytes.data(), body.data(), std::min(body.size(), bytes.size()));
  check(tessera::wire::encode_header(tessera::wire::decode_header(bytes)) == bytes);
}

// `is_exact`: every message that is accepted has one encoding.
template <typename Message>
void read(std::string_view body, bool is_exact) {
  namespace wire = tessera::wire;
  const std::string once = wire::encode(wire::decode<Message>(body));
  check(is_exact ? once == body : wire::encode(wire::decode<Message>(once)) == once);
}

void read_message(unsigned which, std::string_view body) {
  namespace wire = tessera::wire;
  switch (which % 13) {
    case 0:
      return read_header(body);
    case 1:
      return read<wire::JoinRequest>(body, false);
    case 2:
      return read<wire::Refusal>(body, false);
    case 3:
      return read<wire::Seats>(body, true);
    case 4:
      return read<tessera::Failure>(body, false);
    case 5:
      return read<wire::MeetRequest>(body, true);
    case 6:
      return read<wire::Assignment>(body, true);
    case 7:
      return read<wire::Proof>(body, true);
    case 8:
      return read<wire::Settings>(body, false);
    case 9:
      return read<wire::Key>(body, true);
    case 10:
      return read<wire::KeyValue>(body, true);
    case 11:
      return read<wire::KeyAmount>(body, true);
    default:
      return read<wire::Cancellation>(body, true);
  }
}

// One message of each type, preceded by the number that read_message() uses for it.
const std::vector<std::string>& seeds() {
  namespace wire = tessera::wire;
  static const std::vector<std::string> the_seeds = [] {
    const auto header = wire::encode_header({.type = wire::Type::kJoin, .request = 7, .body_bytes = 40});
    const std::vector<std::string> bodies = {
        {reinterpret_cast<const char*>(header.data()), header.size()},
        wire::encode(wire::JoinRequest{.world_size = 2, .rank = 1, .host = "host1", .address = "::1"}),
        wire::encode(wire::Refusal{true, tessera::ExitCode::kBadConfig, "another job"}),
        wire::encode(wire::Seats{{0, "host0", "10.0.0.1"}, {1, "host1", "fe80::2"}}),
        wire::encode(tessera::Failure{}),
        wire::encode(wire::MeetRequest{.max_nodes = 4, .host = "host2", .pid = 9}),
        wire::encode(wire::Assignment{.restart_count = 3, .node_rank = 1, .num_nodes = 2, .num_failures = 1}),
        wire::encode(wire::Proof{}),
        wire::encode(wire::Settings{{"learning_rate", "0.1"}, {"seed", "42"}}),
        wire::encode(wire::Key{"salt"}),
        wire::encode(wire::KeyValue{"salt", "12"}),
        wire::encode(wire::KeyAmount{"joined", 1}),
        wire::encode(wire::Cancellation{7}),
    };
    std::vector<std::string> numbered;
    for (const std::string& body : bodies) {
      numbered.push_back(static_cast<char>(numbered.size()) + body);
    }
    return numbered;
  }();
  return the_seeds;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return tessera::mutate_bytes(data, size, max_size, seed, seeds());
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    read_message(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const tessera::Error& error) {
    tessera::check_refusal(error, tessera::ExitCode::kBadData);
  }
  return 0;
}
