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

bool Handshake::take(Channel& channel, const Header& header, std::string_view body) {
  if (header.version != kVersion && header.type != Type::kRefused) {
    refusal_ =
        Refusal{.message = fmt::format("the store at {} speaks version {} of its protocol, this program "
                                       "version {}: all nodes must run the same version of tessera",
                                       endpoint_, header.version, kVersion)};
    return true;
  }
  switch (header.type) {
    case Type::kChallenge: {
      if (expected_welcome_) fail(ExitCode::kBadData, "a second challenge");
      const Application application = make_application(secret_, type_, decode_bytes(body), request_);
      expected_welcome_ = application.welcome;
      channel.send(type_, 0, application.body);
      return true;
    }
    case Type::kWelcome:
      is_proved_ = expected_welcome_ && is_equal(decode_bytes(body), *expected_welcome_);
      if (!is_proved_) fail(ExitCode::kBadData, "it does not prove the job's secret");
      return true;
    case Type::kRefused:
      refusal_ = decode<Refusal>(body);
      if (!is_proved_ && refusal_->code == ExitCode::kDone) refusal_->try_again = true;
      return true;
    default:
      if (!is_proved_) fail(ExitCode::kBadData, "it does not prove the job's secret");
      return false;
  }
}

void Handshake::take_ending(const Ending& ending) {
  refusal_ = Refusal{
      .message = fmt::format("what listens at {} is not a Tessera store: {}: does the port belong to another "
                             "program?",
                             endpoint_, ending.reason)};
}

}  // namespace tessera::wire
