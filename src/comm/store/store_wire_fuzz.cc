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

#include "base/fuzz_support.h"
#include "comm/store/store_proof.h"
#include "comm/store/store_wire.h"

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

void read_message(unsigned which, std::string_view body) {
  namespace wire = tessera::wire;
  switch (which % 9) {
    case 0:
      return read_header(body);
    case 1: {
      const std::string once = wire::JoinRequest::decode(body).encode();
      return check(wire::JoinRequest::decode(once).encode() == once);
    }
    case 2: {
      const std::string once = wire::Refusal::decode(body).encode();
      return check(wire::Refusal::decode(once).encode() == once);
    }
    case 3: {
      const std::string once = wire::encode_seats(wire::decode_seats(body));
      return check(once == body);
    }
    case 4: {
      const std::string once = wire::encode_failure(wire::decode_failure(body));
      return check(wire::encode_failure(wire::decode_failure(once)) == once);
    }
    case 5: {
      const std::string once = wire::MeetRequest::decode(body).encode();
      return check(once == body && wire::MeetRequest::decode(once).encode() == once);
    }
    case 6: {
      const std::string once = wire::Assignment::decode(body).encode();
      return check(once == body);
    }
    case 7: {
      // A valid proof cannot occur by chance.
      return check(!wire::read_application("secret", wire::Type::kJoin, {}, body));
    }
    default: {
      const std::string once = wire::encode_settings(wire::decode_settings(body));
      return check(wire::encode_settings(wire::decode_settings(once)) == once);
    }
  }
}

// One message of each type, preceded by the number that read_message() uses for it.
const std::vector<std::string>& seeds() {
  namespace wire = tessera::wire;
  static const std::vector<std::string> the_seeds = [] {
    const auto header = wire::encode_header({.type = wire::Type::kJoin, .request = 7, .body_bytes = 40});
    const std::array<wire::Seat, 2> seats = {{{0, "host0", "10.0.0.1"}, {1, "host1", "fe80::2"}}};
    const std::vector<std::string> bodies = {
        {reinterpret_cast<const char*>(header.data()), header.size()},
        wire::JoinRequest{.run_id = "job", .world_size = 2, .rank = 1, .host = "host1", .address = "::1"}
            .encode(),
        wire::Refusal{true, tessera::ExitCode::kBadConfig, "another job"}.encode(),
        wire::encode_seats(seats),
        wire::encode_failure({}),
        wire::MeetRequest{.run_id = "job", .max_nodes = 4, .host = "host2", .pid = 9}.encode(),
        wire::Assignment{.restart_count = 3, .node_rank = 1, .num_nodes = 2, .num_failures = 1}.encode(),
        std::string(64, '\0'),
        wire::encode_settings({{"learning_rate", "0.1"}, {"seed", "42"}}),
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
