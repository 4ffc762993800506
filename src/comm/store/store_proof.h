// How a new connection authenticates itself to the store (proof.h has the mathematics):
//     store    kChallenge: random number
//     stranger kJoin or kMeet: request, random number, proof of both numbers and of the request
//     store    kWelcome: its own proof of the same; then its answer to the request
// A recorded proof fits no other challenge, and the store's proof differs from the stranger's.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/proof.h"
#include "comm/store/store_wire.h"

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

}  // namespace tessera::wire
