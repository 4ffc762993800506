#include "platform/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tessera {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// RFC 3720, B.4.
TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(crc32c(0, bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c(0, bytes_of(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(crc32c(0, bytes_of(std::string(32, '\xFF'))), 0x62A8AB43u);
  EXPECT_EQ(crc32c(0, {}), 0u);
}

std::vector<std::byte> noise(size_t size) {
  std::vector<std::byte> data(size);
  uint32_t state = 12345;
  for (std::byte& byte : data) byte = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return data;
}

// Bit by bit, as the polynomial is defined.
uint32_t crc32c_ref(uint32_t crc, std::span<const std::byte> data) {
  constexpr uint32_t kReflectedPolynomial = 0x82F63B78u;
  crc = ~crc;
  for (const std::byte byte : data) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
  }
  return ~crc;
}

TEST(Crc32c, MatchesTheDefinitionForEverySize) {
  const std::vector<std::byte> data = noise(40'000);
  for (size_t size = 0; size < data.size(); size += size < 1100 ? 1 : 977) {
    // Covers every alignment too.
    const auto part = std::span(data).subspan(size % 64, std::min(size, data.size() - 64));
    ASSERT_EQ(crc32c(0x1234567u, part), crc32c_ref(0x1234567u, part)) << size << " bytes";
  }
}

TEST(Crc32c, PiecesGiveTheChecksumOfTheWhole) {
  const std::vector<std::byte> data = noise(20'011);
  const uint32_t whole = crc32c(0, data);
  for (size_t cut = 0; cut < data.size(); cut += 311) {
    ASSERT_EQ(crc32c(crc32c(0, std::span(data).first(cut)), std::span(data).subspan(cut)), whole) << cut;
  }
}

TEST(Crc32c, FindsEveryFlippedBit) {
  std::vector<std::byte> data = noise(700);
  const uint32_t before = crc32c(0, data);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    ASSERT_NE(crc32c(0, data), before) << "bit " << bit;
    data[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  }
}

}  // namespace
}  // namespace tessera
