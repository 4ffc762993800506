// What two members say to each other before a connection between them counts (network_mesh.h): the listening
// side's challenge, the answer that proves knowledge of the group's secret, and the welcome that proves it of
// the listening side. Little-endian, as in memory.
#pragma once

#include <array>
#include <cstdint>

#include "comm/siphash.h"

namespace tessera {

struct Challenge {
  uint32_t magic;
  uint32_t version;
  std::array<uint64_t, 2> nonce;
};
struct Answer {
  uint32_t magic;
  uint32_t version;
  int32_t from;  // members
  int32_t to;
  int32_t connection;
  int32_t reserved;
  uint64_t proof;  // of the challenge and all above
};
struct Welcome {
  uint64_t proof;  // of the answer
};
static_assert(sizeof(Challenge) == 24 && sizeof(Answer) == 32 && sizeof(Welcome) == 8);

// Who was connected to.
struct Listener {
  int member;
  int num_members;
  int num_connections;  // per pair of members
};

Challenge make_challenge(const std::array<uint64_t, 2>& nonce);
// Whether it is one of this version.
bool is_challenge(const Challenge& challenge);

Answer make_answer(const Challenge& challenge, int from, int to, int connection, const SipKey& secret);
// Whether it comes from a member that connects to `listener` (one with a higher index), on a connection that
// there is, and knows the secret.
bool is_answer_to(const Challenge& challenge, const Answer& answer, const Listener& listener,
                  const SipKey& secret);

Welcome make_welcome(const Answer& answer, const SipKey& secret);
bool is_welcome(const Welcome& welcome, const Answer& answer, const SipKey& secret);

}  // namespace tessera
