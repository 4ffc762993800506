#include "comm/store/store_proof.h"

namespace tessera::wire {

std::string proof_key(std::string_view secret, std::string_view run_id) {
  return std::string(text_of(hmac_sha256(secret, {"store", run_id})));
}

Proofs prove(std::string_view key, const Nonce& challenge, const Nonce& nonce) {
  return {.of_peer = hmac_sha256(key, {"to the store", text_of(challenge), text_of(nonce)}),
          .of_store = hmac_sha256(key, {"from the store", text_of(challenge), text_of(nonce)})};
}

bool Handshake::take(Channel& channel, const Header& header, std::string_view body) {
  if (header.version != kVersion) {
    refusal_ =
        Refusal{.message = fmt::format("the store at {} speaks version {} of its protocol, this program "
                                       "version {}: all nodes must run the same version of tessera",
                                       endpoint_, header.version, kVersion)};
    return true;
  }
  switch (header.type) {
    case Type::kChallenge: {
      if (expected_welcome_) fail(ExitCode::kBadData, "a second challenge");
      const Nonce nonce = random_nonce();
      const Proofs proofs = prove(key_, decode_bytes(body), nonce);
      expected_welcome_ = proofs.of_store;
      channel.send(Type::kProof, 0, encode(Proof{nonce, proofs.of_peer}));
      return true;
    }
    case Type::kWelcome:
      if (is_proved_ || !expected_welcome_ || !is_equal(decode_bytes(body), *expected_welcome_))
        fail(ExitCode::kBadData, "it does not prove the job's secret");
      is_proved_ = true;
      channel.send(type_, 0, request_);
      return true;
    case Type::kRefused:
      if (is_proved_) {
        refusal_ = decode<Refusal>(body);
      } else {
        refusal_ = Refusal{.message = fmt::format("what listens at {} refuses this process, and {}",
                                                  endpoint_, kUnprovedAdvice)};
      }
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

bool UnprovedRefusals::is_final(const Handshake& handshake) {
  if (handshake.is_proved()) {
    reset();
    return !handshake.refusal()->try_again;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!since_) since_ = now;
  return now - *since_ >= patience_;
}

}  // namespace tessera::wire
