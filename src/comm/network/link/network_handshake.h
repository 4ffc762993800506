// The handshake of two members before a connection between them is used (network_mesh.h): the listening
// side's challenge, the connecting side's response, which proves that it knows the group's key, and the
// listening side's welcome, which proves the same. Both proofs cover random numbers of both sides.
// Little-endian, as in memory.
#pragma once

#include <array>
#include <cstdint>

#include "comm/ranks/proof.h"

namespace tessera {

struct Challenge {
  uint32_t magic;
  uint32_t version;
  Nonce nonce;
};
struct Response {
  uint32_t magic;
  uint32_t version;
  int32_t from;  // member indices
  int32_t to;
  int32_t connection;
  int32_t reserved;
  Nonce nonce;
  Mac proof;  // HMAC of the challenge and all fields above
};
struct Welcome {
  Mac proof;  // HMAC of challenge and response
};
static_assert(sizeof(Challenge) == 40 && sizeof(Response) == 88 && sizeof(Welcome) == 32);

// The member that was connected to.
struct Listener {
  int member;
  int num_members;
  int num_connections;  // per pair of members
};

Challenge make_challenge(const Nonce& nonce);
// Whether it is a challenge of this wire version.
bool is_challenge(const Challenge& challenge);

struct ResponseFields {
  int from;
  int to;
  int connection;
  Nonce nonce;
};
Response make_response(const Challenge& challenge, const ResponseFields& fields, const Mac& key);
// Whether it comes from a member that connects to `listener` (one with a higher index), names an existing
// connection, and proves knowledge of the key.
bool is_response_to(const Challenge& challenge, const Response& response, const Listener& listener,
                    const Mac& key);

Welcome make_welcome(const Challenge& challenge, const Response& response, const Mac& key);
bool is_welcome(const Welcome& welcome, const Challenge& challenge, const Response& response, const Mac& key);

}  // namespace tessera
