// Authentication of a new connection to the store (proof.h has the mathematics):
//     store    kChallenge: random number
//     peer     kProof: random number, proof of both numbers
//     store    kWelcome: its own proof of both numbers
//     peer     kJoin or kMeet, which the store answers
// Before both proofs the store reveals nothing about the job and neither side trusts what the other says. A
// recorded proof fits no other challenge, and the store's proof differs from the peer's.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "comm/ranks/proof.h"
#include "comm/store/store_channel.h"

namespace tessera::wire {

// The key that members of a job know and others do not: its secret and its name, so that even a job without a
// secret needs the name.
std::string proof_key(std::string_view secret, std::string_view run_id);

struct Proofs {
  Mac of_peer;
  Mac of_store;
};
Proofs prove(std::string_view key, const Nonce& challenge, const Nonce& nonce);

// Advice to peers that have not proved the secret on how to become a member.
inline constexpr std::string_view kUnprovedAdvice =
    "it does not prove the job's secret and name: give the same --rdzv_secret_file (TESSERA_RDZV_SECRET) and "
    "--rdzv_id on all nodes, and each job a port of its own";

// The peer's side, on one connection.
class Handshake {
 public:
  // `endpoint` names the other side in messages.
  Handshake(std::string endpoint, std::string key, Type type, std::string request)
      : endpoint_(std::move(endpoint)), key_(std::move(key)), type_(type), request_(std::move(request)) {}

  // Takes a challenge, a proof or a refusal; returns false for other messages. Error(kBadData) for one out of
  // order, and for any other message from a peer that has not proved the job's secret.
  bool take(Channel& channel, const Header& header, std::string_view body);
  // The connection has ended because of a bad message.
  void take_ending(const Ending& ending);

  bool is_proved() const { return is_proved_; }
  // Why this process is refused: the store's words, or, of a peer without a proof, our own.
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  const std::string endpoint_, key_;
  const Type type_;
  const std::string request_;
  std::optional<Mac> expected_welcome_;
  bool is_proved_ = false;
  std::optional<Refusal> refusal_;
};

// Limits the time refusals without a proof are retried: whatever holds the port may make room.
class UnprovedRefusals {
 public:
  explicit UnprovedRefusals(std::chrono::milliseconds patience) : patience_(patience) {}

  // Whether the refusal that `handshake` has got ends the attempts.
  bool is_final(const Handshake& handshake);
  // Something else has come in between.
  void reset() { since_.reset(); }

 private:
  const std::chrono::milliseconds patience_;
  std::optional<std::chrono::steady_clock::time_point> since_;
};

}  // namespace tessera::wire
