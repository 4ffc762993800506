#include "comm/ranks/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>

#include "base/error.h"

namespace tessera {

Mac hmac_sha256(std::string_view key, std::initializer_list<std::string_view> fields) {
  std::string text;
  for (const std::string_view field : fields) {
    const uint64_t size = field.size();
    for (int shift = 0; shift < 64; shift += 8) text += static_cast<char>((size >> shift) & 0xff);
    text += field;
  }
  Mac mac;
  unsigned int size = 0;
  const unsigned char* const made =
      HMAC(EVP_sha256(), key.data() == nullptr ? "" : key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &size);
  TESSERA_CHECK(made != nullptr && size == mac.size(), "libcrypto made {} bytes", size);
  return mac;
}

bool is_equal(const Mac& a, const Mac& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Nonce random_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    fail_errno(ExitCode::kIoError, errno, "cannot get random numbers from the system");
  }
  return nonce;
}

std::string random_secret() {
  std::string text;
  for (const std::byte byte : random_nonce()) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

}  // namespace tessera
