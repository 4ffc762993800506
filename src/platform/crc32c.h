// CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected), as of iSCSI (RFC 3720, B.4): the checksum of
// payloads and headers on the network, and of the pieces of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// Checksum of `data` behind what gave `crc`; 0 at the start. crc32c(crc32c(0, a), b) is that of a, b joined.
// Carry-less products of AVX-512 where the processor has them, the instruction of SSE4.2, or a table.
uint32_t crc32c(uint32_t crc, std::span<const std::byte> data);

// The same by every way that this processor has, with their names, the specification first; for tests.
std::vector<std::pair<std::string, uint32_t>> crc32c_by_every_way(uint32_t crc,
                                                                  std::span<const std::byte> data);

}  // namespace tessera
