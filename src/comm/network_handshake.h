// What two members say to each other before a connection between them counts (network_mesh.h): the listening
// side's challenge, the answer that proves knowledge of the group's key, and the welcome that proves it of
// the listening side. Both proofs cover random numbers of both sides. Little-endian, as in memory.
#pragma once

#include <array>
#include <cstdint>

#include "comm/proof.h"

namespace tessera {

struct Challenge {
  uint32_t magic;
  uint32_t version;
  Nonce nonce;
};
struct Answer {
  uint32_t magic;
  uint32_t version;
  int32_t from;  // members
  int32_t to;
  int32_t connection;
  int32_t reserved;
  Nonce nonce;
  Mac proof;  // of the challenge and all above
};
struct Welcome {
  Mac proof;  // of challenge and answer
};
static_assert(sizeof(Challenge) == 40 && sizeof(Answer) == 88 && sizeof(Welcome) == 32);

// Who was connected to.
struct Listener {
  int member;
  int num_members;
  int num_connections;  // per pair of members
};

Challenge make_challenge(const Nonce& nonce);
// Whether it is one of this version.
bool is_challenge(const Challenge& challenge);

struct AnswerFields {
  int from;
  int to;
  int connection;
  Nonce nonce;
};
Answer make_answer(const Challenge& challenge, const AnswerFields& fields, const Mac& key);
// Whether it comes from a member that connects to `listener` (one with a higher index), on a connection that
// there is, and knows the key.
bool is_answer_to(const Challenge& challenge, const Answer& answer, const Listener& listener, const Mac& key);

Welcome make_welcome(const Challenge& challenge, const Answer& answer, const Mac& key);
bool is_welcome(const Welcome& welcome, const Challenge& challenge, const Answer& answer, const Mac& key);

}  // namespace tessera
