// Messages between the store and its members: their content, their layout, and the limits they must respect.
// Anyone may connect to an open port, so nothing here trusts a size or a count.
//
// A message is a 16-byte header and a body, all numbers little-endian:
//     0  char[4]  "TSTR"
//     4  u16      version of the protocol; this header, kRefused and Refusal are the same in all versions
//     6  u16      type
//     8  u32      request, repeated in the answer; 0 = no answer wanted
//    12  u32      size of the body in bytes
// Strings are a u32 size followed by the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ranks/failure.h"
#include "comm/ranks/proof.h"

namespace tessera::wire {

inline constexpr uint16_t kVersion = 3;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr uint32_t kMaxBodyBytes = 16 << 20;  // from a member: values and rosters
inline constexpr uint32_t kMaxJoinBytes = 16 << 10;  // from a peer that has not joined

enum class Type : uint16_t {
  // from members
  kJoin = 1,         // JoinRequest; answered by kAccepted or kRefused; later by kFormed
  kHeartbeat = 2,    // empty; both ways
  kSet = 3,          // KeyValue; answered by kValue (empty)
  kGet = 4,          // Key; answered by kValue when it is set
  kAdd = 5,          // KeyAmount; answered by kValue (text of the sum)
  kCancel = 6,       // Cancellation
  kSuspect = 7,      // Failure
  kOwnFailure = 8,   // Failure; answered by kValue (empty)
  kReport = 9,       // Failure, from agents; answered by kValue (empty)
  kLeave = 10,       // empty; answered by kValue (empty)
  kMissing = 11,     // empty; answered by kValue (one line: who is missing)
  kMeet = 12,        // MeetRequest; answered by kAccepted or kRefused; later by kAssigned or kRefused
  kNodeReport = 13,  // text, from agents once there is a verdict: where the ranks of its node are; answered
                     // by kValue (where the report on all nodes is; "" = nowhere)
  kProof = 14,       // Proof (store_proof.h), a member's first message; answered by kWelcome or kRefused
  // from the store
  kAccepted = 32,   // empty
  kRefused = 33,    // Refusal
  kFormed = 34,     // std::vector<Seat>
  kValue = 35,      // value
  kDenied = 36,     // Refusal: the request cannot be served
  kVerdict = 37,    // Failure
  kChallenge = 38,  // 32 random bytes, the first message of every connection
  kWelcome = 39,    // the store's own proof
  kAssigned = 40,   // Assignment
};

struct Header {
  uint16_t version = kVersion;
  Type type = Type::kHeartbeat;
  uint32_t request = 0;
  uint32_t body_bytes = 0;
};

std::array<std::byte, kHeaderBytes> encode_header(const Header& header);
// Error(kBadData) if it does not begin like a message. The version is not checked.
Header decode_header(std::span<const std::byte, kHeaderBytes> bytes);

// Bodies. Each lists its fields once, in store_wire.cc, for both directions. decode(): Error(kBadData) if
// something is missing, left over or out of range.
template <typename Message>
struct Codec {
  static std::string encode(const Message& message);
  static Message decode(std::string_view body);
};
template <typename Message>
std::string encode(const Message& message) {
  return Codec<Message>::encode(message);
}
template <typename Message>
Message decode(std::string_view body) {
  return Codec<Message>::decode(body);
}

// The body of kChallenge and kWelcome.
std::string encode_bytes(const std::array<std::byte, 32>& bytes);
std::array<std::byte, 32> decode_bytes(std::string_view body);

struct Key {
  std::string key;
};

struct KeyValue {
  std::string key;
  std::string value;
};

struct KeyAmount {
  std::string key;
  int64_t amount = 0;
};

struct Cancellation {
  uint32_t request = 0;  // no longer awaited
};

// Proves that its sender knows the job's secret and name.
struct Proof {
  Nonce nonce;
  Mac mac;
};

// A request to join.
struct JoinRequest {
  int restart_count = 0;
  int world_size = 1;
  int local_world_size = 1;
  bool is_agent = false;
  int rank = 0;  // -1 for an agent
  int node_rank = 0;
  std::string host;
  std::string address;            // where others reach it
  bool address_is_guess = false;  // the store may know a better one
  int64_t pid = 0;
};

// Sent by a node's agent that wants to take part in the next start of a job.
struct MeetRequest {
  int min_nodes = 1;
  int max_nodes = 1;
  int local_world_size = 1;
  int wanted_rank = -1;  // of the node; -1: any
  int former_rank = -1;  // in the previous start; -1: none
  std::string host = {};
  int64_t pid = 0;
};

// A node's role in a start.
struct Assignment {
  int restart_count = 0;
  int node_rank = 0;
  int num_nodes = 1;
  int num_failures = 0;  // of the program in earlier starts, as far as they count against --max_restarts
};

struct Refusal {
  bool try_again = false;  // the cause may be temporary
  ExitCode code = ExitCode::kBadConfig;
  std::string message;
};

// A rank of a complete job.
struct Seat {
  int node_rank = 0;
  std::string host;
  std::string address;
};
using Seats = std::vector<Seat>;

using Settings = std::map<std::string, std::string>;

}  // namespace tessera::wire
