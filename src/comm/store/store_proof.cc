#include "comm/store/store_proof.h"

#include <algorithm>
#include <cstring>

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

std::string encode_bytes(const std::array<std::byte, 32>& bytes) { return std::string(text_of(bytes)); }

std::array<std::byte, 32> decode_bytes(std::string_view body) {
  std::array<std::byte, 32> bytes;
  if (body.size() != bytes.size()) {
    fail(ExitCode::kBadData, "message of the store: expected {} bytes, found {}", bytes.size(), body.size());
  }
  std::memcpy(bytes.data(), body.data(), body.size());
  return bytes;
}

Application make_application(std::string_view secret, Type type, const Nonce& challenge,
                             std::string_view request) {
  const Nonce nonce = random_nonce();
  const Proofs proofs = prove(secret, type, challenge, nonce, request);
  Writer out;
  out.text(request);
  out.text(text_of(nonce));
  out.text(text_of(proofs.application));
  return {.body = out.take(), .welcome = proofs.welcome};
}

std::optional<Applicant> read_application(std::string_view secret, Type type, const Nonce& challenge,
                                          std::string_view body) {
  Reader in(body);
  Applicant applicant;
  applicant.request = in.text();
  const Nonce nonce = decode_bytes(in.text(sizeof(Nonce)));
  const Mac proof = decode_bytes(in.text(sizeof(Mac)));
  in.end();
  const Proofs proofs = prove(secret, type, challenge, nonce, applicant.request);
  if (!is_equal(proof, proofs.application)) return std::nullopt;
  applicant.welcome = proofs.welcome;
  return applicant;
}

}  // namespace tessera::wire
