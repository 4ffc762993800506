// Checks the closed forms against sums computed by hand and for the properties they must have.
#include "shard/layout/zero_memory.h"

#include "shard/layout/device_window_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/elementwise/elementwise.h"
#include "optim/elementwise.h"

namespace tessera {
namespace {

// Embedding 480, three decoder layers of 240, head 720: P = 1920.
constexpr int64_t kElements = 1920;

ZeroLayout layout(int num_nodes, int local_world_size) {
  return {{{0, 480}, {480, 720}, {720, 960}, {960, 1200}, {1200, 1920}}, 1, num_nodes, local_world_size};
}

ZeroSettings settings(int stage, GatherSchedule schedule, int64_t passes) {
  ZeroSettings out;
  out.stage = stage;
  out.schedule = schedule;
  out.passes_per_step = passes;
  out.persistence_threshold = 0;
  out.state_tensors = AdamW::kStateTensors;
  return out;
}

constexpr GatherSchedule kPerStep = GatherSchedule::kPerStep;
constexpr GatherSchedule kPerLayer = GatherSchedule::kPerLayer;

TEST(ZeroMemory, AWorldOfOneKeepsEverythingOnce) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const GatherSchedule schedule : {kPerStep, kPerLayer}) {
      const ZeroMemory memory = zero_memory(layout(1, 1), settings(stage, schedule, 4));
      EXPECT_EQ(memory.weight_bytes, 2 * kElements);
      EXPECT_EQ(memory.live_weight_bytes, 0);
      EXPECT_EQ(memory.layer_buffer_bytes, 0);
      EXPECT_EQ(memory.accumulator_bytes, 4 * kElements);
      EXPECT_EQ(memory.optimizer_bytes, 8 * kElements + sum_of_squares_scratch_bytes(kElements));
      EXPECT_EQ(memory.remainder_bytes, 2 * kElements);
    }
  }
}

TEST(ZeroMemory, UpdatesInBackwardKeepTheGradientsOfTheLargestGroup) {
  ZeroLayout alone = layout(1, 1);
  ZeroSettings in_backward = settings(0, kPerStep, 1);
  in_backward.optimizer_in_backward = true;
  const ZeroMemory memory = zero_memory(alone, in_backward);
  EXPECT_EQ(memory.accumulator_bytes, 4 * 720);
  EXPECT_EQ(memory.layer_buffer_bytes, 0);
  EXPECT_EQ(memory.optimizer_bytes, zero_memory(alone, settings(0, kPerStep, 1)).optimizer_bytes);
  alone.tied_embeddings = true;
  alone.groups.back() = {1200, 1216};
  EXPECT_EQ(zero_memory(alone, in_backward).accumulator_bytes, 4 * (480 + 240));
  EXPECT_EQ(gradient_window(alone).begin, (std::vector<int64_t>{0, 480, 480, 480, 480}));
}

TEST(ZeroMemory, UpdatesInBackwardKeepARanksPartOfTheLargestGroup) {
  for (const GatherSchedule schedule : {kPerStep, kPerLayer}) {
    ZeroSettings in_backward = settings(3, schedule, 1);
    const ZeroMemory after = zero_memory(layout(4, 2), in_backward);
    in_backward.optimizer_in_backward = true;
    const ZeroMemory memory = zero_memory(layout(4, 2), in_backward);
    EXPECT_EQ(memory.accumulator_bytes, 4 * 720 / 8);
    EXPECT_EQ(memory.layer_buffer_bytes, after.layer_buffer_bytes);
    EXPECT_EQ(memory.staging_bytes, after.staging_bytes);
  }
}

// Embedding and head of 40 chunks, two layers of 20: chunks have 2^19 elements of 10 bytes.
TEST(ZeroMemory, BuffersOfStateOnADiskTakeTheChunksReadAhead) {
  constexpr int64_t kChunk = int64_t{1} << 19, kPartBytes = 4 * kChunk;
  const ZeroLayout large = {{{0, 40 * kChunk},
                             {40 * kChunk, 60 * kChunk},
                             {60 * kChunk, 80 * kChunk},
                             {80 * kChunk, 120 * kChunk}}};
  ZeroSettings on_disk = settings(0, kPerStep, 1);
  on_disk.state_folder.emplace();
  EXPECT_EQ(layer_state_chunks(large, on_disk), 20 + 1);
  for (const int64_t chunks_ahead : {3, 4, 21, 116}) {
    on_disk.state_folder->chunks_ahead = chunks_ahead;
    const ZeroMemory memory = zero_memory(large, on_disk);
    EXPECT_EQ(memory.optimizer_bytes,
              (chunks_ahead + 4) * 10 * kChunk + kPartBytes + sum_of_squares_scratch_bytes(120 * kChunk));
    EXPECT_EQ(memory.state_ahead_bytes, chunks_ahead * 10 * kChunk);
    EXPECT_EQ(memory.state_file_bytes, 120 * 10 * kChunk);
    EXPECT_EQ(memory.remainder_bytes, 0);
  }
  on_disk.state_folder->chunks_ahead = 200;
  EXPECT_EQ(zero_memory(large, on_disk).state_ahead_bytes, 119 * 10 * kChunk) << "all but the one in use";
  on_disk.stage = 3;
  ZeroLayout four_ranks = large;
  four_ranks.local_world_size = 4;
  EXPECT_EQ(layer_state_chunks(four_ranks, on_disk), 11 + 1) << "30 x 2^19 elements are 64 chunks";
}

TEST(ZeroMemory, OptimizerStateIsOncePerNodeInStage0AndOnceInTheJobAbove) {
  const int64_t scratch = sum_of_squares_scratch_bytes(kElements);  // one block, whatever the part size
  for (const GatherSchedule schedule : {kPerStep, kPerLayer}) {
    EXPECT_EQ(zero_memory(layout(4, 2), settings(0, schedule, 1)).optimizer_bytes,
              8 * kElements / 2 + scratch);
    EXPECT_EQ(zero_memory(layout(4, 2), settings(0, schedule, 1)).remainder_bytes, 2 * kElements / 2);
    for (int stage = 1; stage <= 3; ++stage) {
      EXPECT_EQ(zero_memory(layout(4, 2), settings(stage, schedule, 1)).optimizer_bytes,
                8 * kElements / 8 + scratch);
      EXPECT_EQ(zero_memory(layout(4, 2), settings(stage, schedule, 1)).remainder_bytes, 2 * kElements / 8);
    }
  }
}

TEST(ZeroMemory, AccumulatorsAreCompletePerNodeWhereTheNetworkIsUsedOncePerStep) {
  const auto bytes = [](int stage, GatherSchedule schedule, int64_t passes) {
    return zero_memory(layout(4, 2), settings(stage, schedule, passes)).accumulator_bytes;
  };
  constexpr int64_t kComplete = 4 * kElements / 2, kSharded = 4 * kElements / 8;
  for (const int64_t passes : {1, 3}) {
    for (const int stage : {0, 1}) {
      EXPECT_EQ(bytes(stage, kPerStep, passes), kComplete);
      EXPECT_EQ(bytes(stage, kPerLayer, passes), kComplete);
    }
    for (const int stage : {2, 3}) {
      EXPECT_EQ(bytes(stage, kPerStep, passes), passes == 1 ? kSharded : kComplete);
      EXPECT_EQ(bytes(stage, kPerLayer, passes), kSharded);
    }
  }
  ZeroSettings bf16 = settings(3, kPerLayer, 3);
  bf16.gradient_dtype = DType::kBF16;
  EXPECT_EQ(zero_memory(layout(4, 2), bf16).accumulator_bytes, kSharded / 2);
}

TEST(ZeroMemory, WeightsAreShardedOverNodesInStage3PerLayerOnly) {
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(zero_memory(layout(4, 2), settings(stage, kPerStep, 1)).weight_bytes, 2 * kElements);
    EXPECT_EQ(zero_memory(layout(4, 2), settings(stage, kPerStep, 1)).live_weight_bytes, 0);
    EXPECT_EQ(zero_memory(layout(4, 2), settings(stage, kPerLayer, 1)).weight_bytes,
              stage == 3 ? 2 * kElements / 4 : 2 * kElements);
  }
}

TEST(ZeroMemory, GatheredLayersFollowPrefetchWithinTheLiveLimit) {
  ZeroSettings sharded = settings(3, kPerLayer, 1);
  const auto live = [&](int64_t prefetch, int64_t max_live) {
    sharded.prefetch_elements = prefetch;
    sharded.max_live_elements = max_live;
    const ZeroMemory memory = zero_memory(layout(4, 2), sharded);
    EXPECT_EQ(memory.live_weight_bytes, 2 * (num_live_layers(layout(4, 2), sharded) * 240 + 720));
    return num_live_layers(layout(4, 2), sharded);
  };
  EXPECT_EQ(live(1'000'000, 1'000'000), 3);  // all there are
  EXPECT_EQ(live(480, 1'000'000), 3);        // two ahead
  EXPECT_EQ(live(479, 1'000'000), 2);
  EXPECT_EQ(live(0, 1'000'000), 2);        // never less than one ahead
  EXPECT_EQ(live(480, 720 + 3 * 240), 3);  // less the larger of embedding and head
  EXPECT_EQ(live(480, 720 + 3 * 240 - 1), 2);
  EXPECT_EQ(live(480, 0), 2);
}

TEST(ZeroMemory, PersistentGroupsStayBesideTheGatheredOnes) {
  ZeroSettings sharded = settings(3, kPerLayer, 1);
  sharded.persistence_threshold = 240;  // covers the decoder layers
  EXPECT_EQ(zero_memory(layout(4, 1), sharded).live_weight_bytes, 2 * (720 + 3 * 240));
  sharded.persistence_threshold = 10'000;
  EXPECT_EQ(zero_memory(layout(4, 1), sharded).live_weight_bytes, 2 * kElements);
}

TEST(ZeroMemory, LayerBuffersArePerRankUnlessTheModelAddsToTheAccumulators) {
  constexpr int64_t kOneRank = 4 * (2 * 240 + 720);
  const auto bytes = [](int nodes, int local, int stage, GatherSchedule schedule, int64_t passes) {
    return zero_memory(layout(nodes, local), settings(stage, schedule, passes)).layer_buffer_bytes;
  };
  EXPECT_EQ(bytes(1, 2, 1, kPerStep, 1), 2 * kOneRank);
  EXPECT_EQ(bytes(4, 3, 3, kPerLayer, 1), 3 * kOneRank);
  EXPECT_EQ(bytes(4, 1, 1, kPerStep, 1), 0);
  EXPECT_EQ(bytes(4, 1, 3, kPerStep, 2), 0);
  EXPECT_EQ(bytes(4, 1, 3, kPerStep, 1), kOneRank);
  EXPECT_EQ(bytes(4, 1, 2, kPerLayer, 2), kOneRank);
  ZeroSettings bf16 = settings(1, kPerStep, 2);
  bf16.gradient_dtype = DType::kBF16;
  EXPECT_EQ(zero_memory(layout(4, 1), bf16).layer_buffer_bytes, kOneRank);
}

// The head, 720, is cut into eight parts of 90; a rail has four of them.
TEST(ZeroMemory, SumsOnTheNetworkHaveMemoryWhereAccumulatorsHaveNoRoom) {
  EXPECT_EQ(zero_memory(layout(4, 2), settings(3, kPerLayer, 2)).staging_bytes, 4 * 2 * 360);
  EXPECT_EQ(zero_memory(layout(4, 2), settings(2, kPerStep, 1)).staging_bytes, 4 * 2 * 360);
  EXPECT_EQ(zero_memory(layout(4, 2), settings(2, kPerStep, 2)).staging_bytes, 0);
  EXPECT_EQ(zero_memory(layout(4, 1), settings(3, kPerLayer, 2)).staging_bytes, 0);
  // Sums accumulated as BF16 cross the network as float32.
  const auto with_bf16 = [](int num_nodes, int local_world_size, int stage, int64_t passes) {
    ZeroSettings bf16 = settings(stage, kPerStep, passes);
    bf16.gradient_dtype = DType::kBF16;
    return zero_memory(layout(num_nodes, local_world_size), bf16);
  };
  EXPECT_EQ(with_bf16(4, 2, 2, 2).staging_bytes, 4 * 2 * 360);
  EXPECT_EQ(with_bf16(4, 1, 1, 1).staging_bytes, 4 * 2 * 720);
  EXPECT_EQ(with_bf16(4, 1, 3, 1).staging_bytes, 0);
  EXPECT_EQ(with_bf16(1, 4, 1, 2).staging_bytes, 0);
  EXPECT_EQ(with_bf16(1, 4, 1, 2).rounding_bytes, 4 << 20);
  EXPECT_EQ(zero_memory(layout(4, 2), settings(2, kPerStep, 2)).rounding_bytes, 0);
}

TEST(ZeroMemory, Float32WeightsHaveNoRemainders) {
  ZeroSettings f32 = settings(3, kPerStep, 1);
  f32.weight_dtype = DType::kF32;
  const ZeroMemory memory = zero_memory(layout(2, 2), f32);
  EXPECT_EQ(memory.weight_bytes, 4 * kElements);
  EXPECT_EQ(memory.remainder_bytes, 0);
}

TEST(ZeroMemory, ItemsAddUpToTheAllocations) {
  for (const int local : {1, 3}) {
    ZeroSettings sharded = settings(3, kPerLayer, 2);
    if (local == 3) sharded.gradient_dtype = DType::kBF16;
    const ZeroMemory memory = zero_memory(layout(2, local), sharded);
    int64_t shared = 0, of_rank = 0;
    for (const MemoryItem& item : zero_memory_items(layout(2, local), sharded)) {
      EXPECT_GT(item.size_bytes, 0) << item.name;
      (item.scope == MemoryScope::kNode ? shared : of_rank) += item.size_bytes;
    }
    EXPECT_EQ(shared, memory.weight_bytes + memory.live_weight_bytes + memory.layer_buffer_bytes);
    EXPECT_EQ(of_rank, memory.accumulator_bytes + memory.staging_bytes + memory.rounding_bytes +
                           memory.optimizer_bytes + memory.remainder_bytes);
  }
}

TEST(ZeroMemory, MoreNodesNeverTakeMorePerRankAndNode) {
  for (int stage = 1; stage <= 3; ++stage) {
    for (const GatherSchedule schedule : {kPerStep, kPerLayer}) {
      ZeroMemory last = zero_memory(layout(2, 2), settings(stage, schedule, 2));
      for (int nodes = 4; nodes <= 8; nodes *= 2) {
        const ZeroMemory memory = zero_memory(layout(nodes, 2), settings(stage, schedule, 2));
        EXPECT_LE(memory.weight_bytes, last.weight_bytes);
        EXPECT_LE(memory.accumulator_bytes, last.accumulator_bytes);
        EXPECT_LT(memory.optimizer_bytes, last.optimizer_bytes);
        EXPECT_LT(memory.remainder_bytes, last.remainder_bytes);
        EXPECT_EQ(memory.layer_buffer_bytes, last.layer_buffer_bytes);
        last = memory;
      }
    }
  }
}

TEST(WireBytes, OneNodeUsesNoNetwork) {
  for (int stage = 0; stage <= 3; ++stage) {
    const WireBytes wire = wire_bytes_per_step(layout(1, 4), settings(stage, kPerLayer, 3), 0);
    EXPECT_EQ(wire.sent() + wire.received(), 0);
  }
}

// 1920 elements over four nodes: 2 x 1920 x 3 / 4 = 2880 bytes.
TEST(WireBytes, PerStepIsOneGatherAndOneReductionWhateverTheAccumulation) {
  for (const int64_t passes : {1, 2, 7}) {
    for (int stage = 1; stage <= 3; ++stage) {
      for (int node = 0; node < 4; ++node) {
        const WireBytes wire = wire_bytes_per_step(layout(4, 2), settings(stage, kPerStep, passes), node);
        EXPECT_EQ(wire.sent_gather, 2880);
        EXPECT_EQ(wire.received_gather, 2880);
        EXPECT_EQ(wire.sent_reduce, 2880);
        EXPECT_EQ(wire.received_reduce, 2880);
      }
    }
  }
}

// Every pass takes embedding and head, 1200 elements. Two of three decoder layers of 240 are in memory at
// once: the first forward pass gathers all three, every later pass one. 2 bytes per element, three quarters
// of them from other nodes.
TEST(WireBytes, PerLayerGathersAndReducesInEveryPass) {
  for (const int64_t passes : {1, 2, 7}) {
    ZeroSettings two_layers = settings(3, kPerLayer, passes);
    two_layers.prefetch_elements = 0;
    const WireBytes wire = wire_bytes_per_step(layout(4, 2), two_layers, 1);
    const int64_t gathered = passes * 1200 + (2 + 2 * passes) * 240;
    EXPECT_EQ(wire.received_gather, gathered * 2 * 3 / 4);
    EXPECT_EQ(wire.sent_gather, wire.received_gather);
    EXPECT_EQ(wire.received_reduce, passes * 2880);
    EXPECT_EQ(wire.sent_reduce, passes * 2880);
  }
}

TEST(WireBytes, LayersThatAllFitAreGatheredOncePerStep) {
  const WireBytes wire = wire_bytes_per_step(layout(4, 2), settings(3, kPerLayer, 7), 1);
  EXPECT_EQ(wire.received_gather, (7 * 1200 + 720) * 2 * 3 / 4);
}

TEST(WireBytes, PersistentGroupsAreGatheredOncePerStep) {
  ZeroSettings persistent = settings(3, kPerLayer, 5);
  persistent.persistence_threshold = 480;  // all but the head, which then has a slot of its own
  EXPECT_EQ(wire_bytes_per_step(layout(4, 2), persistent, 1).received_gather, 2880);
}

// A final norm of 40 elements instead of the head.
TEST(WireBytes, TiedEmbeddingsAreGatheredOncePerStep) {
  ZeroLayout tied = layout(4, 2);
  tied.groups.back().end = tied.groups.back().begin + 40;
  const ZeroSettings all_layers = settings(3, kPerLayer, 5);
  EXPECT_TRUE(is_persistent(tied, all_layers, 4));
  EXPECT_FALSE(is_persistent(tied, all_layers, 0));
  EXPECT_EQ(wire_bytes_per_step(tied, all_layers, 1).received_gather, 1240 * 2 * 3 / 4);
}

// An encoder's head may be larger than the table it is tied to, of a small vocabulary.
TEST(ZeroLayout, AHeadThatIsOpenWithItsEmbeddingHasAnotherPlace) {
  ZeroLayout tied = layout(4, 2);
  const auto last = std::ssize(tied.groups) - 1;
  ASSERT_GE(tied.groups.back().size(), tied.groups.front().size() / 2);
  EXPECT_FALSE(takes_layer_place(tied, last)) << "they are used one after the other";
  tied.tied_embeddings = true;
  EXPECT_TRUE(takes_layer_place(tied, last));
  EXPECT_FALSE(takes_layer_place(tied, 0));
  EXPECT_TRUE(is_persistent(tied, settings(3, kPerLayer, 5), last));
}

TEST(WireBytes, Stage2PerLayerReducesInEveryPassAndGathersOnce) {
  const WireBytes wire = wire_bytes_per_step(layout(4, 2), settings(2, kPerLayer, 3), 0);
  EXPECT_EQ(wire.received_gather, 2880);
  EXPECT_EQ(wire.sent_reduce, 3 * 2880);
}

TEST(WireBytes, Stage0GathersSumsInsteadOfWeights) {
  ZeroSettings replicated = settings(0, kPerStep, 3);
  for (const auto& [accumulators, gathered] :
       {std::pair(DType::kF32, 2 * 2880), std::pair(DType::kBF16, 2880)}) {
    replicated.gradient_dtype = accumulators;
    const WireBytes wire = wire_bytes_per_step(layout(4, 2), replicated, 0);
    EXPECT_EQ(wire.received_gather, 0);
    EXPECT_EQ(wire.sent_reduce, 2880 + gathered);
    EXPECT_EQ(wire.received_reduce, 2880 + gathered);
  }
}

// Parts of 240 elements, in two blocks of codes.
TEST(WireBytes, QuantizedGradientsTakeTheBytesOfTheirBlocks) {
  for (const auto& [code, of_part] :
       {std::pair(GradientCode::kInt8, 8 + 240), {GradientCode::kInt4, 8 + 120}}) {
    ZeroLayout one_group = layout(4, 2);
    one_group.groups = {{0, 1920}, {1920, 1920}};
    ZeroSettings quantized = settings(2, kPerStep, 5);
    quantized.quantized_gradients = code;
    for (int node = 0; node < 4; ++node) {
      const WireBytes wire = wire_bytes_per_step(one_group, quantized, node);
      EXPECT_EQ(wire.sent_gather, 2880);
      EXPECT_EQ(wire.sent_reduce, 3 * 2 * of_part);
      EXPECT_EQ(wire.received_reduce, 3 * 2 * of_part);
    }
    quantized.schedule = kPerLayer;
    EXPECT_EQ(wire_bytes_per_step(one_group, quantized, 0).sent_reduce, 5 * 3 * 2 * of_part);
    EXPECT_EQ(zero_memory(one_group, quantized).feedback_bytes, 2 * 1920 / 2);
    quantized.stage = 0;
    EXPECT_EQ(wire_bytes_per_step(one_group, quantized, 0).sent_reduce, 3 * 2 * of_part + 4 * 1920 * 3 / 4);
  }
}

// GB that a node sends in a step of Llama 3 8B on 4 nodes, with 32 layers.
TEST(WireBytes, OfLlama3) {
  ZeroLayout llama;
  llama.num_nodes = 4;
  llama.alignment = 16;
  int64_t at = 0;
  for (int group = 0; group < 34; ++group) {
    const int64_t size = group == 0 ? 525'336'576 : group == 33 ? 525'340'672 : 218'112'000;
    llama.groups.push_back({at, at + size});
    at += size;
  }
  EXPECT_EQ(at, 8'030'261'248);
  ZeroSettings of = settings(3, kPerStep, 1);
  const auto sent_gb = [&] { return static_cast<double>(wire_bytes_per_step(llama, of, 0).sent()) * 1e-9; };
  EXPECT_NEAR(sent_gb(), 24.09, 0.01);
  of.quantized_weights = true;
  EXPECT_NEAR(sent_gb(), 18.26, 0.01);
  of.quantized_gradients = GradientCode::kInt8;
  EXPECT_NEAR(sent_gb(), 12.42, 0.01);
  of.quantized_gradients = GradientCode::kInt4;
  EXPECT_NEAR(sent_gb(), 9.41, 0.01);
}

// 1920 elements in parts of 64, over 3 nodes of 3 ranks: the last parts are short or empty.
TEST(WireBytes, WhatOneNodeSendsOthersReceive) {
  ZeroLayout uneven = layout(3, 3);
  uneven.alignment = 64;
  for (int stage = 0; stage <= 3; ++stage) {
    for (const GatherSchedule schedule : {kPerStep, kPerLayer}) {
      WireBytes sum;
      for (int node = 0; node < 3; ++node) {
        const WireBytes wire = wire_bytes_per_step(uneven, settings(stage, schedule, 2), node);
        sum.sent_gather += wire.sent_gather;
        sum.received_gather += wire.received_gather;
        sum.sent_reduce += wire.sent_reduce;
        sum.received_reduce += wire.received_reduce;
      }
      EXPECT_EQ(sum.sent_gather, sum.received_gather);
      EXPECT_EQ(sum.sent_reduce, sum.received_reduce);
      EXPECT_EQ(sum.sent_reduce % (2 * 2 * kElements), 0);  // (K - 1) times 2 bytes of every element
    }
  }
}

}  // namespace
}  // namespace tessera
