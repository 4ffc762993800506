// How a new connection authenticates itself to the store (proof.h has the mathematics):
//     store    kChallenge: random number
//     stranger kJoin or kMeet: request, random number, proof of both numbers and of the request
//     store    kWelcome: its own proof of the same; then its answer to the request
// A recorded proof fits no other challenge, and the store's proof differs from the stranger's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "comm/proof.h"
#include "comm/store/store_channel.h"

namespace tessera::wire {

struct Application {
  std::string body;  // of the message
  Mac welcome;       // the proof the store must give
};
Application make_application(std::string_view secret, Type type, const Nonce& challenge,
                             std::string_view request);

struct Applicant {
  std::string request;
  Mac welcome;  // the proof to give to it
};
// nullopt if it does not know the secret. Error(kBadData) if the body is not that of an application.
std::optional<Applicant> read_application(std::string_view secret, Type type, const Nonce& challenge,
                                          std::string_view body);

// The stranger's side, on one connection.
class Handshake {
 public:
  // `endpoint` names the other side in messages.
  Handshake(std::string endpoint, std::string secret, Type type, std::string request)
      : endpoint_(std::move(endpoint)),
        secret_(std::move(secret)),
        type_(type),
        request_(std::move(request)) {}

  // Takes a challenge, a proof or a refusal; returns false for other messages. Error(kBadData) for one out of
  // order, and for any other message from a peer that has not proved the job's secret.
  bool take(Channel& channel, const Header& header, std::string_view body);
  // The connection has ended because of a bad message.
  void take_ending(const Ending& ending);

  bool is_proved() const { return is_proved_; }
  // Why this process is refused. Success counts only from a peer that has proved the job's secret.
  const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  const std::string endpoint_, secret_;
  const Type type_;
  const std::string request_;
  std::optional<Mac> expected_welcome_;
  bool is_proved_ = false;
  std::optional<Refusal> refusal_;
};

}  // namespace tessera::wire
