// Input that an unauthenticated peer, or a link that corrupts data, may send to a member of a network group.
// The first byte chooses: a response or a challenge of the handshake, which never passes without the key; or
// the header of a message, which is accepted only exactly as sent, and which can be described even if wrong.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "comm/network/link/network_handshake.h"
#include "comm/network/link/wire_message.h"

namespace {

using namespace tessera;

const Mac kKey = hmac_sha256("secret", {"of the group"});
constexpr Listener kListener = {.member = 1, .num_members = 4, .num_connections = 3};

void check(bool holds) {
  if (!holds) std::abort();
}

// Consumes a value from the bytes; missing bytes are zero.
template <typename T>
T take(std::span<const uint8_t>& bytes) {
  T value{};
  const size_t count = std::min(bytes.size(), sizeof(T));
  if (count > 0) std::memcpy(&value, bytes.data(), count);
  bytes = bytes.subspan(count);
  return value;
}

// A response passes only if its bytes are exactly those the member would have sent.
void answer_challenge(std::span<const uint8_t> bytes) {
  const auto challenge = take<Challenge>(bytes);
  Response response = take<Response>(bytes);
  check(!is_response_to(challenge, response, kListener, kKey));
  // A member may claim anything about itself, with the right proof.
  response = make_response(
      challenge,
      {.from = response.from, .to = response.to, .connection = response.connection, .nonce = response.nonce},
      kKey);
  const bool is_of_group = response.to == 1 && (response.from == 2 || response.from == 3) &&
                           response.connection >= 0 && response.connection < 3;
  check(is_response_to(challenge, response, kListener, kKey) == is_of_group);
  check(is_welcome(make_welcome(challenge, response, kKey), challenge, response, kKey));
  check(!is_welcome(take<Welcome>(bytes), challenge, response, kKey));
}

void read_message(std::span<const uint8_t> bytes) {
  WireHeader header = take<WireHeader>(bytes);
  check(!describe(header).empty());
  OperationId operation{.number = header.number,
                        .collective = static_cast<Collective>(header.collective),
                        .root = header.root,
                        .total_bytes = header.total_bytes,
                        .parts_hash = header.parts_hash,
                        .label = {"weights", header.layer}};
  const std::string mismatch = describe_mismatch(operation, "rank 0", header, "rank 1");
  check(mismatch.find("rank 0") != std::string::npos && mismatch.find("rank 1") != std::string::npos);
  if (is_intact(header)) return;

  // A header arrives intact as sent, and is rejected with any byte changed.
  header = make_header(operation, header.chunk, std::as_bytes(bytes));
  check(is_intact(header) && matches(header, operation, header.chunk, std::ssize(bytes)));
  check(!matches(header, operation, header.chunk, std::ssize(bytes) + 1));
  auto* const sent = reinterpret_cast<uint8_t*>(&header);
  const size_t at = bytes.empty() ? 0 : bytes.front() % sizeof(header);
  sent[at] = static_cast<uint8_t>(sent[at] ^ (bytes.size() < 2 || bytes[1] == 0 ? 1 : bytes[1]));
  check(!is_intact(header));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const uint8_t> bytes(data + 1, size - 1);
  if (data[0] % 2 == 0) {
    answer_challenge(bytes);
  } else {
    read_message(bytes);
  }
  return 0;
}
