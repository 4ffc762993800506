// CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected) as in iSCSI (RFC 3720, B.4): the checksum of network
// payloads and headers and of checkpoint pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

// Checksum of `data` appended to what gave `crc`; pass 0 to start. crc32c(crc32c(0, a), b) is the checksum of
// a followed by b.
uint32_t crc32c(uint32_t crc, std::span<const std::byte> data);

}  // namespace tessera
