#include "comm/network/link/network_handshake.h"

#include <string_view>

#include "comm/network/link/wire_message.h"

namespace tessera {
namespace {

constexpr uint32_t kHandshakeMagic = 0x48535354;  // "TSSH"

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The roles differ, so that neither side's proof serves as the other's.
Mac response_proof(const Mac& key, const Challenge& challenge, Response response) {
  response.proof = {};
  return hmac_sha256(text_of(key), {"answer", bytes_of(challenge), bytes_of(response)});
}

}  // namespace

Challenge make_challenge(const Nonce& nonce) { return {kHandshakeMagic, kWireVersion, nonce}; }

bool is_challenge(const Challenge& challenge) {
  return challenge.magic == kHandshakeMagic && challenge.version == kWireVersion;
}

Response make_response(const Challenge& challenge, const ResponseFields& fields, const Mac& key) {
  Response response{
      kHandshakeMagic, kWireVersion, fields.from, fields.to, fields.connection, 0, fields.nonce, {}};
  response.proof = response_proof(key, challenge, response);
  return response;
}

bool is_response_to(const Challenge& challenge, const Response& response, const Listener& listener,
                    const Mac& key) {
  return response.magic == kHandshakeMagic && response.version == kWireVersion &&
         response.to == listener.member && response.from > listener.member &&
         response.from < listener.num_members && response.connection >= 0 &&
         response.connection < listener.num_connections &&
         is_equal(response.proof, response_proof(key, challenge, response));
}

Welcome make_welcome(const Challenge& challenge, const Response& response, const Mac& key) {
  return {hmac_sha256(text_of(key), {"welcome", bytes_of(challenge), bytes_of(response)})};
}

bool is_welcome(const Welcome& welcome, const Challenge& challenge, const Response& response,
                const Mac& key) {
  return is_equal(welcome.proof, make_welcome(challenge, response, key).proof);
}

}  // namespace tessera
