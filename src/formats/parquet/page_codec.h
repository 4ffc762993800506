// Decompression of pages.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace tessera::parquet {

// Throws Problem if `codec` (a CompressionCodec of parquet.thrift) is unknown, or if `compressed` cannot hold
// `uncompressed_size` bytes, so that the size in a damaged header is never allocated.
void check_codec(int32_t codec, int64_t compressed_size, int64_t uncompressed_size);

inline constexpr int32_t kUncompressed = 0;

// Fills all of `page`; Problem if `compressed` is damaged or holds fewer or more bytes.
void decompress_page(int32_t codec, std::string_view compressed, std::span<char> page);

}  // namespace tessera::parquet
