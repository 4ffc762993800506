// What a stranger, or a link that corrupts data, may send to a member of a network group. The first byte
// chooses: an answer or a challenge of the handshake, which never passes without the key; or the header of a
// message, which is accepted only exactly as sent, and which can be described even if wrong.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "comm/network/network_handshake.h"
#include "comm/network/wire_message.h"

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

// An answer passes only if its bytes are exactly those the member would have sent.
void answer_challenge(std::span<const uint8_t> bytes) {
  const auto challenge = take<Challenge>(bytes);
  Answer answer = take<Answer>(bytes);
  check(!is_answer_to(challenge, answer, kListener, kKey));
  // A member may claim anything about itself, with the right proof.
  answer = make_answer(
      challenge,
      {.from = answer.from, .to = answer.to, .connection = answer.connection, .nonce = answer.nonce}, kKey);
  const bool is_of_group = answer.to == 1 && (answer.from == 2 || answer.from == 3) &&
                           answer.connection >= 0 && answer.connection < 3;
  check(is_answer_to(challenge, answer, kListener, kKey) == is_of_group);
  check(is_welcome(make_welcome(challenge, answer, kKey), challenge, answer, kKey));
  check(!is_welcome(take<Welcome>(bytes), challenge, answer, kKey));
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
