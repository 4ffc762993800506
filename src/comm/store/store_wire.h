// Messages between the store and its members: their content, their layout, and the limits they must respect.
// Anyone may connect to an open port, so nothing here trusts a size or a count.
//
// A message is a 16-byte header and a body, all numbers little-endian:
//     0  char[4]  "TSTR"
//     4  u16      version of the protocol; this header, kJoin's type and Refusal are the same in all versions
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

#include "comm/failure.h"

namespace tessera::wire {

inline constexpr uint16_t kVersion = 2;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr uint32_t kMaxBodyBytes = 16 << 20;  // from a member: values and rosters
inline constexpr uint32_t kMaxJoinBytes = 16 << 10;  // from a peer that has not joined
inline constexpr size_t kMaxKeyBytes = 4 << 10;

enum class Type : uint16_t {
  // from members
  kJoin = 1,        // application (store_proof.h) with a JoinRequest; answered by kWelcome, and kAccepted or
                    // kRefused; later by kFormed
  kHeartbeat = 2,   // empty; both ways
  kSet = 3,         // key, value; answered by kValue (empty)
  kGet = 4,         // key; answered by kValue when it is set
  kAdd = 5,         // key, i64; answered by kValue (text of the sum)
  kCancel = 6,      // u32: the request that is no longer awaited
  kSuspect = 7,     // Failure
  kOwnFailure = 8,  // Failure; answered by kValue (empty)
  kReport = 9,      // Failure, from agents; answered by kValue (empty)
  kLeave = 10,      // empty; answered by kValue (empty)
  kMissing = 11,    // empty; answered by kValue (one line: who is missing)
  kMeet = 12,  // application with a MeetRequest; answered by kWelcome, and kAccepted or kRefused; later by
               // kAssigned or kRefused
  kNodeReport = 13,  // text, from agents once there is a verdict: where the ranks of its node are; answered
                     // by kValue (where the report on all nodes is; "" = nowhere)
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

// Appends fields one after another.
class Writer {
 public:
  void u32(uint32_t value);
  void i64(int64_t value);
  void text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads fields back; Error(kBadData) if something is missing or left over.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint32_t u32();
  int64_t i64();
  // A number in [low, high].
  int ranged(int low, int high);
  std::string text(size_t max_bytes = kMaxBodyBytes);
  void end() const;

 private:
  std::string_view take(size_t size);
  std::string_view rest_;
};

// Who asks to join, and which job.
struct JoinRequest {
  std::string run_id;
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

  std::string encode() const;
  static JoinRequest decode(std::string_view body);
};

// Sent by a node's agent that wants to take part in the next start of a job.
struct MeetRequest {
  std::string run_id = {};
  int min_nodes = 1;
  int max_nodes = 1;
  int local_world_size = 1;
  int wanted_rank = -1;  // of the node; -1: any
  int former_rank = -1;  // in the previous start; -1: none
  std::string host = {};
  int64_t pid = 0;

  std::string encode() const;
  static MeetRequest decode(std::string_view body);
};

// A node's role in a start.
struct Assignment {
  int restart_count = 0;
  int node_rank = 0;
  int num_nodes = 1;
  int num_failures = 0;  // of the program in earlier starts, as far as they count against --max_restarts

  std::string encode() const;
  static Assignment decode(std::string_view body);
};

struct Refusal {
  bool try_again = false;  // the cause may be temporary
  ExitCode code = ExitCode::kBadConfig;
  std::string message;

  std::string encode() const;
  static Refusal decode(std::string_view body);
};

// A rank of a complete job.
struct Seat {
  int node_rank = 0;
  std::string host;
  std::string address;
};
std::string encode_seats(std::span<const Seat> seats);
std::vector<Seat> decode_seats(std::string_view body);

std::string encode_failure(const Failure& failure);
Failure decode_failure(std::string_view body);

std::string encode_settings(const std::map<std::string, std::string>& settings);
std::map<std::string, std::string> decode_settings(std::string_view body);

}  // namespace tessera::wire
