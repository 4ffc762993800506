// The first byte chooses a message, the rest is its body. Any bytes are either refused with Error(kBadData)
// or give a value that is written and read back as it is.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "comm/store_proof.h"
#include "comm/store_wire.h"

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
      // Nobody finds a proof by chance.
      return check(!wire::read_application("secret", wire::Type::kJoin, {}, body));
    }
    default: {
      const std::string once = wire::encode_settings(wire::decode_settings(body));
      return check(wire::encode_settings(wire::decode_settings(once)) == once);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  try {
    read_message(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const tessera::Error& error) {
    if (error.code() != tessera::ExitCode::kBadData) {
      std::fprintf(stderr, "%s\n", error.what());
      std::abort();
    }
  }
  return 0;
}
