// The header of every payload on the network, and how a mismatch between two sides is described.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ranks/op_label.h"
#include "kernels/quantized_weight/gradient_blocks.h"

namespace tessera {

// Version of everything sent between two members; members of different versions refuse each other.
inline constexpr uint32_t kWireVersion = 4;

enum class Collective : uint8_t {
  kAllGather,
  kReduceScatterBf16,
  kReduceScatterF32,
  kBroadcast,
  kAllGatherInt8,
  kReduceScatterInt8,
  kReduceScatterInt4,
  kReduceScatterOfBf16,
  kAllToAll
};

// The name and wire format of a collective.
struct CollectiveKind {
  std::string_view name;                           // in metrics
  std::string_view message;                        // in messages
  int64_t element_bytes = 1;                       // in the buffer
  int64_t wire_element_bytes = 1;                  // as sent, unless in blocks of codes
  bool sums = false;                               // a member's part becomes the sum over all
  std::optional<GradientCode> gradient_code = {};  // of what is summed
};
inline constexpr std::array<CollectiveKind, 9> kCollectives = {
    {{"all_gather", "all_gather"},
     {"reduce_scatter_bf16", "reduce_scatter in bf16", 4, 2, true},
     {"reduce_scatter_f32", "reduce_scatter in float32", 4, 4, true},
     {"broadcast", "broadcast"},
     {"all_gather_int8", "all_gather in int8", 2},
     {"reduce_scatter_int8", "reduce_scatter in int8", 4, 0, true, GradientCode::kInt8},
     {"reduce_scatter_int4", "reduce_scatter in int4", 4, 0, true, GradientCode::kInt4},
     {"reduce_scatter_of_bf16", "reduce_scatter of bf16", 2, 2, true},
     {"all_to_all", "all_to_all"}}};  // by Collective
constexpr const CollectiveKind& kind_of(Collective collective) {
  return kCollectives[static_cast<size_t>(collective)];
}

// Payload bytes of `num_elements` elements of a part.
int64_t wire_bytes(Collective collective, int64_t num_elements);

// The properties of an operation on which all members must agree, but for the sizes of an all-to-all: each
// member has its own.
struct OperationId {
  uint64_t number = 0;  // from 1, in the order of issue
  Collective collective = Collective::kAllGather;
  int32_t root = -1;        // broadcast only
  int64_t total_bytes = 0;  // of the whole buffer, as sent
  uint64_t parts_hash = 0;  // hash of the parts' bounds
  OpLabel label{"", -1};
};

// One message: a part of an operation's buffer. Little-endian, as in memory.
struct WireHeader {
  static constexpr uint32_t kMagic = 0x4D535354;  // "TSSM"
  static constexpr size_t kLabelBytes = 40;

  uint32_t magic;
  uint8_t collective;
  uint8_t reserved[3];
  uint64_t number;
  int64_t total_bytes;
  uint64_t parts_hash;
  int64_t layer;
  int32_t root;
  uint32_t chunk;  // index of the piece within the sender's or receiver's part
  uint32_t payload_bytes;
  uint32_t payload_crc;
  char label[kLabelBytes];  // truncated, zero-padded
  uint32_t reserved_end;
  uint32_t header_crc;  // CRC32C of all fields above
};
static_assert(sizeof(WireHeader) == 104);

WireHeader make_header(const OperationId& operation, int64_t chunk, std::span<const std::byte> payload);

// Whether the header arrived as it was sent.
bool is_intact(const WireHeader& header);

// Whether a message belongs to the operation and is the expected chunk of it.
bool matches(const WireHeader& header, const OperationId& operation, int64_t chunk, int64_t payload_bytes);

// "all_gather 12 of weights of group 3, 1048576 bytes".
std::string describe(const OperationId& operation);
std::string describe(const WireHeader& header);

// Describes a mismatch: "rank 0 on host a is in all_gather 12 of ..., but rank 2 on host b is in ...".
std::string describe_mismatch(const OperationId& mine, const std::string& my_name, const WireHeader& theirs,
                              const std::string& their_name);

}  // namespace tessera
