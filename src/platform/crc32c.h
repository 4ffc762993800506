// CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected) as in iSCSI (RFC 3720, B.4): the checksum of network
// payloads and headers and of checkpoint pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// Checksum of `data` appended to what gave `crc`; pass 0 to start. crc32c(crc32c(0, a), b) is the checksum of
// a followed by b. Uses AVX-512 carry-less multiplication where available, else the SSE4.2 instruction, else
// a table.
uint32_t crc32c(uint32_t crc, std::span<const std::byte> data);

// The same by every method this processor has, with their names, the reference first; for tests.
std::vector<std::pair<std::string, uint32_t>> crc32c_by_every_way(uint32_t crc,
                                                                  std::span<const std::byte> data);

}  // namespace tessera
