#include "comm/network_handshake.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "comm/wire_message.h"

namespace tessera {
namespace {

constexpr uint32_t kHandshakeMagic = 0x48535354;  // "TSSH"

template <typename T>
std::array<std::byte, sizeof(T)> bytes_of(const T& value) {
  return std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
}

uint64_t answer_proof(const SipKey& secret, const Challenge& challenge, Answer answer) {
  answer.proof = 0;
  std::array<std::byte, sizeof(Challenge) + sizeof(Answer)> text;
  std::ranges::copy(bytes_of(challenge), text.begin());
  std::ranges::copy(bytes_of(answer), text.begin() + sizeof(Challenge));
  return siphash(secret, text);
}

}  // namespace

Challenge make_challenge(const std::array<uint64_t, 2>& nonce) {
  return {kHandshakeMagic, kWireVersion, nonce};
}

bool is_challenge(const Challenge& challenge) {
  return challenge.magic == kHandshakeMagic && challenge.version == kWireVersion;
}

Answer make_answer(const Challenge& challenge, int from, int to, int connection, const SipKey& secret) {
  Answer answer{kHandshakeMagic, kWireVersion, from, to, connection, 0, 0};
  answer.proof = answer_proof(secret, challenge, answer);
  return answer;
}

bool is_answer_to(const Challenge& challenge, const Answer& answer, const Listener& listener,
                  const SipKey& secret) {
  return answer.magic == kHandshakeMagic && answer.version == kWireVersion && answer.to == listener.member &&
         answer.from > listener.member && answer.from < listener.num_members && answer.connection >= 0 &&
         answer.connection < listener.num_connections &&
         answer.proof == answer_proof(secret, challenge, answer);
}

Welcome make_welcome(const Answer& answer, const SipKey& secret) {
  return {siphash(secret, bytes_of(answer))};
}

bool is_welcome(const Welcome& welcome, const Answer& answer, const SipKey& secret) {
  return welcome.proof == make_welcome(answer, secret).proof;
}

}  // namespace tessera
