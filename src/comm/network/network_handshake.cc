#include "comm/network/network_handshake.h"

#include <string_view>

#include "comm/network/wire_message.h"

namespace tessera {
namespace {

constexpr uint32_t kHandshakeMagic = 0x48535354;  // "TSSH"

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The roles differ, so that neither side's proof serves as the other's.
Mac answer_proof(const Mac& key, const Challenge& challenge, Answer answer) {
  answer.proof = {};
  return hmac_sha256(text_of(key), {"answer", bytes_of(challenge), bytes_of(answer)});
}

}  // namespace

Challenge make_challenge(const Nonce& nonce) { return {kHandshakeMagic, kWireVersion, nonce}; }

bool is_challenge(const Challenge& challenge) {
  return challenge.magic == kHandshakeMagic && challenge.version == kWireVersion;
}

Answer make_answer(const Challenge& challenge, const AnswerFields& fields, const Mac& key) {
  Answer answer{
      kHandshakeMagic, kWireVersion, fields.from, fields.to, fields.connection, 0, fields.nonce, {}};
  answer.proof = answer_proof(key, challenge, answer);
  return answer;
}

bool is_answer_to(const Challenge& challenge, const Answer& answer, const Listener& listener,
                  const Mac& key) {
  return answer.magic == kHandshakeMagic && answer.version == kWireVersion && answer.to == listener.member &&
         answer.from > listener.member && answer.from < listener.num_members && answer.connection >= 0 &&
         answer.connection < listener.num_connections &&
         is_equal(answer.proof, answer_proof(key, challenge, answer));
}

Welcome make_welcome(const Challenge& challenge, const Answer& answer, const Mac& key) {
  return {hmac_sha256(text_of(key), {"welcome", bytes_of(challenge), bytes_of(answer)})};
}

bool is_welcome(const Welcome& welcome, const Challenge& challenge, const Answer& answer, const Mac& key) {
  return is_equal(welcome.proof, make_welcome(challenge, answer, key).proof);
}

}  // namespace tessera
