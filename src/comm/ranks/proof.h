// Proves knowledge of a job's secret without sending it: HMAC-SHA256 (RFC 2104, FIPS 180-4) over random
// numbers of both sides and everything a side says about itself. Without a secret the key is empty and the
// proof proves nothing.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera {

using Mac = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

inline std::string_view text_of(const std::array<std::byte, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// HMAC of the concatenated fields, each preceded by its length in 8 bytes, little-endian, so that different
// lists of fields are different messages.
Mac hmac_sha256(std::string_view key, std::initializer_list<std::string_view> fields);
// Constant time: does not depend on where they differ.
bool is_equal(const Mac& a, const Mac& b);

// From the system's random source. Error(kIoError).
Nonce random_nonce();
// A new secret: 64 hexadecimal digits.
std::string random_secret();

}  // namespace tessera
