#include "comm/store/store_proof.h"

#include <utility>

namespace tessera::wire {
namespace {

struct Proofs {
  Mac application;
  Mac welcome;
};

Proofs prove(std::string_view secret, Type type, const Nonce& challenge, const Nonce& nonce,
             std::string_view request) {
  const std::string kind = std::to_string(static_cast<int>(type));
  return {
      .application = hmac_sha256(secret, {"to the store", kind, text_of(challenge), text_of(nonce), request}),
      .welcome = hmac_sha256(secret, {"from the store", kind, text_of(challenge), text_of(nonce), request})};
}

}  // namespace

Application make_application(std::string_view secret, Type type, const Nonce& challenge,
                             std::string_view request) {
  const Nonce nonce = random_nonce();
  const Proofs proofs = prove(secret, type, challenge, nonce, request);
  return {.body = encode(ProvedRequest{std::string(request), nonce, proofs.application}),
          .welcome = proofs.welcome};
}

std::optional<Applicant> read_application(std::string_view secret, Type type, const Nonce& challenge,
                                          std::string_view body) {
  ProvedRequest message = decode<ProvedRequest>(body);
  const Proofs proofs = prove(secret, type, challenge, message.nonce, message.request);
  if (!is_equal(message.proof, proofs.application)) return std::nullopt;
  return Applicant{.request = std::move(message.request), .welcome = proofs.welcome};
}

}  // namespace tessera::wire
