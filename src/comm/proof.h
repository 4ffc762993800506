// Proof of knowing a job's secret without sending it: HMAC-SHA256 (RFC 2104, FIPS 180-4) over random numbers
// of both sides and all that is said of oneself. Without a secret the key is empty, and the proof one of
// nothing.
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

// Of the fields one behind the other, each behind its length in 8 bytes, little-endian: no two lists of
// fields have the same.
Mac hmac_sha256(std::string_view key, std::initializer_list<std::string_view> fields);
// In a time that does not depend on where they differ.
bool is_equal(const Mac& a, const Mac& b);

// From the system. Error(kIoError).
Nonce random_nonce();
// A new secret: 64 hexadecimal digits.
std::string random_secret();

}  // namespace tessera
