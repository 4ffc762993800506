#include "comm/network/link/wire_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "kernels/quantized_weight/int8_blocks.h"
#include "platform/crc32c.h"

namespace tessera {
namespace {

uint32_t header_checksum(const WireHeader& header) {
  return crc32c(0, std::as_bytes(std::span(&header, 1)).first(offsetof(WireHeader, header_crc)));
}

std::string_view name_of(uint8_t collective) {
  return collective < kCollectives.size() ? kCollectives[collective].message : "an unknown operation";
}

bool has_common_size(uint8_t collective) { return collective != static_cast<uint8_t>(Collective::kAllToAll); }

std::string describe(uint8_t collective, uint64_t number, int root, const OpLabel& label,
                     int64_t total_bytes) {
  const std::string from = root < 0 ? std::string() : fmt::format(" from member {}", root);
  const std::string text = fmt::format("{} {}{} of {}", name_of(collective), number, from, to_string(label));
  return has_common_size(collective) ? text + ", " + count_of(total_bytes, "byte") : text;
}

WireHeader header_without_checksums(const OperationId& operation, int64_t chunk, int64_t payload_bytes) {
  WireHeader header{};
  header.magic = WireHeader::kMagic;
  header.collective = static_cast<uint8_t>(operation.collective);
  header.number = operation.number;
  if (has_common_size(header.collective)) {
    header.total_bytes = operation.total_bytes;
    header.parts_hash = operation.parts_hash;
  }
  header.layer = operation.label.layer;
  header.root = operation.root;
  header.chunk = static_cast<uint32_t>(chunk);
  header.payload_bytes = static_cast<uint32_t>(payload_bytes);
  std::copy_n(operation.label.what, ::strnlen(operation.label.what, WireHeader::kLabelBytes), header.label);
  return header;
}

// The label, which may lack a terminating zero.
std::string label_text(const WireHeader& header) {
  return {header.label, ::strnlen(header.label, WireHeader::kLabelBytes)};
}

}  // namespace

int64_t wire_bytes(Collective collective, int64_t num_elements) {
  if (collective == Collective::kAllGatherInt8) return int8_blocks_bytes(num_elements);
  const CollectiveKind& kind = kind_of(collective);
  return kind.gradient_code ? gradient_blocks_bytes(*kind.gradient_code, num_elements)
                            : num_elements * kind.wire_element_bytes;
}

WireHeader make_header(const OperationId& operation, int64_t chunk, std::span<const std::byte> payload) {
  WireHeader header = header_without_checksums(operation, chunk, std::ssize(payload));
  header.payload_crc = crc32c(0, payload);
  header.header_crc = header_checksum(header);
  return header;
}

bool is_intact(const WireHeader& header) {
  return header.magic == WireHeader::kMagic && header.header_crc == header_checksum(header);
}

bool matches(const WireHeader& header, const OperationId& operation, int64_t chunk, int64_t payload_bytes) {
  WireHeader expected = header_without_checksums(operation, chunk, payload_bytes);
  expected.payload_crc = header.payload_crc;
  expected.header_crc = header.header_crc;
  return std::memcmp(&header, &expected, sizeof(header)) == 0;
}

std::string describe(const OperationId& operation) {
  return describe(static_cast<uint8_t>(operation.collective), operation.number, operation.root,
                  operation.label, operation.total_bytes);
}

std::string describe(const WireHeader& header) {
  const std::string label = label_text(header);
  return describe(header.collective, header.number, header.root, {label.c_str(), header.layer},
                  header.total_bytes);
}

std::string describe_mismatch(const OperationId& mine, const std::string& my_name, const WireHeader& theirs,
                              const std::string& their_name) {
  const std::string here = describe(mine);
  const std::string there = describe(theirs);
  const char* reason = here != there                          ? ""
                       : theirs.parts_hash != mine.parts_hash ? ", whose parts have different bounds"
                                                              : ", which sent a different chunk";
  return fmt::format("the ranks are in different operations: {} is in {}, but {} is in {}{}", my_name, here,
                     their_name, there, reason);
}

}  // namespace tessera
