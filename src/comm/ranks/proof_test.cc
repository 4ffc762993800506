// Proofs of a shared secret. Expected values computed with Python's hmac.
#include "comm/ranks/proof.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "comm/network/link/network_handshake.h"
#include "comm/store/store_proof.h"

namespace tessera {
namespace {

std::string hex(const Mac& mac) {
  std::string text;
  for (const std::byte byte : mac) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

TEST(Proof, IsHmacSha256) {
  EXPECT_EQ(hex(hmac_sha256("", {})), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  EXPECT_EQ(hex(hmac_sha256("Jefe", {"ab", "", "c"})),
            "4c9948c308a1f134f868742f846c574852b8272c3bccf65cfb48dcdab1db9891");
}

TEST(Proof, FieldsDoNotRunIntoOneAnother) {
  EXPECT_NE(hmac_sha256("key", {"ab", "c"}), hmac_sha256("key", {"a", "bc"}));
  EXPECT_NE(hmac_sha256("key", {"ab"}), hmac_sha256("key", {"ab", ""}));
}

TEST(Proof, EqualityLooksAtEveryByte) {
  const Mac mac = hmac_sha256("key", {"text"});
  EXPECT_TRUE(is_equal(mac, mac));
  for (size_t i = 0; i < mac.size(); ++i) {
    Mac other = mac;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(is_equal(mac, other)) << i;
  }
}

TEST(Proof, RandomNumbersDiffer) {
  EXPECT_NE(random_nonce(), random_nonce());
  EXPECT_NE(random_secret(), random_secret());
}

// The proofs differ by side, and with each of secret, job, challenge and number.
TEST(StoreProof, CoversAllThatMembersKnow) {
  using namespace wire;
  const Nonce challenge = random_nonce(), nonce = random_nonce();
  const Proofs proofs = prove(proof_key("secret", "job"), challenge, nonce);
  EXPECT_EQ(prove(proof_key("secret", "job"), challenge, nonce).of_peer, proofs.of_peer);
  std::set<Mac> all = {proofs.of_peer, proofs.of_store};
  for (const Proofs& other :
       {prove(proof_key("secres", "job"), challenge, nonce), prove(proof_key("", "job"), challenge, nonce),
        prove(proof_key("secret", "jab"), challenge, nonce),
        prove(proof_key("secretj", "ob"), challenge, nonce),
        prove(proof_key("secret", "job"), random_nonce(), nonce),
        prove(proof_key("secret", "job"), challenge, random_nonce())}) {
    all.insert({other.of_peer, other.of_store});
  }
  EXPECT_EQ(all.size(), 14u);
}

TEST(NetworkHandshake, ProofsCoverBothSidesNumbers) {
  const Mac key = hmac_sha256("secret", {});
  const Listener listener = {.member = 0, .num_members = 2, .num_connections = 1};
  const Challenge challenge = make_challenge(random_nonce());
  const ResponseFields fields = {.from = 1, .to = 0, .connection = 0, .nonce = random_nonce()};
  const Response response = make_response(challenge, fields, key);
  EXPECT_TRUE(is_response_to(challenge, response, listener, key));
  EXPECT_FALSE(is_response_to(make_challenge(random_nonce()), response, listener, key));
  EXPECT_FALSE(is_response_to(challenge, response, listener, hmac_sha256("secres", {})));
  Response other = response;
  other.nonce = random_nonce();
  EXPECT_FALSE(is_response_to(challenge, other, listener, key));
  const Welcome welcome = make_welcome(challenge, response, key);
  EXPECT_TRUE(is_welcome(welcome, challenge, response, key));
  EXPECT_FALSE(is_welcome(welcome, challenge, other, key));
  EXPECT_FALSE(is_welcome(welcome, make_challenge(random_nonce()), response, key));
  EXPECT_FALSE(is_welcome({response.proof}, challenge, response, key)) << "its own proof, sent back";
}

}  // namespace
}  // namespace tessera
