// The settings of a run that are one of several words; docs/flags.md says what each of them means.
#pragma once

#include <array>
#include <optional>

#include "base/choice.h"
#include "base/log.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "shard/layout/load_once.h"
#include "tensor/dtype.h"

namespace tessera {

enum class PackingStrategy { kAuto, kBfd, kBfdSplit, kWrapped, kInOrder, kGreedyKnapsack };
constexpr auto choice_words(PackingStrategy) {
  using enum PackingStrategy;
  return std::to_array<Word<PackingStrategy>>({{"auto", kAuto},
                                               {"bfd", kBfd},
                                               {"bfd_split", kBfdSplit},
                                               {"wrapped", kWrapped},
                                               {"in_order", kInOrder},
                                               {"greedy_knapsack", kGreedyKnapsack}});
}

enum class SamplingStrategy { kRandom, kSequential, kGroupByLength };
constexpr auto choice_words(SamplingStrategy) {
  using enum SamplingStrategy;
  return std::to_array<Word<SamplingStrategy>>(
      {{"random", kRandom}, {"sequential", kSequential}, {"group_by_length", kGroupByLength}});
}

enum class ClipMode { kGlobal, kPrevious, kLayer };
constexpr auto choice_words(ClipMode) {
  using enum ClipMode;
  return std::to_array<Word<ClipMode>>({{"global", kGlobal}, {"previous", kPrevious}, {"layer", kLayer}});
}

enum class LossSpikePolicy { kWarn, kSkip, kStop };
constexpr auto choice_words(LossSpikePolicy) {
  using enum LossSpikePolicy;
  return std::to_array<Word<LossSpikePolicy>>({{"warn", kWarn}, {"skip", kSkip}, {"stop", kStop}});
}

enum class FinetuningType { kFull, kLora };
constexpr auto choice_words(FinetuningType) {
  using enum FinetuningType;
  return std::to_array<Word<FinetuningType>>({{"full", kFull}, {"lora", kLora}});
}

// The 16 values of a weight in 4 bits.
enum class QuantizationType { kNf4 };
constexpr auto choice_words(QuantizationType) {
  return std::to_array<Word<QuantizationType>>({{"nf4", QuantizationType::kNf4}});
}

// The types a run can train in.
inline constexpr auto kTrainingDTypeWords = std::to_array<Word<DType>>(
    {{"bfloat16", DType::kBF16}, {"float32", DType::kF32}, {"bf16", DType::kBF16}, {"fp32", DType::kF32}});
// The types its model can be saved in.
inline constexpr auto kSavedDTypeWords =
    std::to_array<Word<std::optional<DType>>>({{"bfloat16", DType::kBF16},
                                               {"float16", DType::kF16},
                                               {"float32", DType::kF32},
                                               {"bf16", DType::kBF16},
                                               {"fp16", DType::kF16},
                                               {"fp32", DType::kF32},
                                               {"", std::nullopt}});

enum class CheckpointingMode { kFull, kSelective, kOffload };
constexpr auto choice_words(CheckpointingMode) {
  using enum CheckpointingMode;
  return std::to_array<Word<CheckpointingMode>>(
      {{"full", kFull}, {"selective", kSelective}, {"offload", kOffload}});
}

enum class AutoChoice { kAuto, kAlways, kNever };
constexpr auto choice_words(AutoChoice) {
  using enum AutoChoice;
  return std::to_array<Word<AutoChoice>>({{"auto", kAuto}, {"always", kAlways}, {"never", kNever}});
}

// The place of offloaded state: kNone and kCpu are both memory, except for weights beside a card.
enum class OffloadDevice { kNone, kCpu, kNvme };
constexpr auto choice_words(OffloadDevice) {
  using enum OffloadDevice;
  return std::to_array<Word<OffloadDevice>>({{"none", kNone}, {"cpu", kCpu}, {"nvme", kNvme}});
}

enum class FitChoice { kBest, kFastest };
constexpr auto choice_words(FitChoice) {
  using enum FitChoice;
  return std::to_array<Word<FitChoice>>({{"best", kBest}, {"fastest", kFastest}});
}

enum class GatherChoice { kAuto, kPerStep, kPerLayer };
constexpr auto choice_words(GatherChoice) {
  using enum GatherChoice;
  return std::to_array<Word<GatherChoice>>(
      {{"auto", kAuto}, {"per_step", kPerStep}, {"per_layer", kPerLayer}});
}

// Unset: as the deepspeed file says.
inline constexpr auto kAccumulationDTypeWords = std::to_array<Word<std::optional<DType>>>(
    {{"auto", std::nullopt}, {"float32", DType::kF32}, {"bfloat16", DType::kBF16}});

inline constexpr auto kGradientCodeWords = std::to_array<Word<std::optional<GradientCode>>>(
    {{"none", std::nullopt}, {"int8", GradientCode::kInt8}, {"int4", GradientCode::kInt4}});

// When something recurs, as Transformers names it.
enum class IntervalStrategy { kNo, kSteps, kEpoch };
constexpr auto choice_words(IntervalStrategy) {
  using enum IntervalStrategy;
  return std::to_array<Word<IntervalStrategy>>({{"no", kNo}, {"steps", kSteps}, {"epoch", kEpoch}});
}
enum class SaveStrategy { kNo, kSteps, kEpoch, kBest };
constexpr auto choice_words(SaveStrategy) {
  using enum SaveStrategy;
  return std::to_array<Word<SaveStrategy>>(
      {{"no", kNo}, {"steps", kSteps}, {"epoch", kEpoch}, {"best", kBest}});
}

enum class ReportTo { kJsonl, kTensorboard, kCsv, kMlflow, kPrometheus, kDashboard };
constexpr auto choice_words(ReportTo) {
  using enum ReportTo;
  return std::to_array<Word<ReportTo>>({{"jsonl", kJsonl},
                                        {"tensorboard", kTensorboard},
                                        {"csv", kCsv},
                                        {"mlflow", kMlflow},
                                        {"prometheus", kPrometheus},
                                        {"dashboard", kDashboard}});
}

enum class TokensSeen { kNo, kAll, kNonPadding };
constexpr auto choice_words(TokensSeen) {
  using enum TokensSeen;
  return std::to_array<Word<TokensSeen>>({{"no", kNo}, {"all", kAll}, {"non_padding", kNonPadding}});
}

// Unset: info, or warning with quiet.
inline constexpr auto kLogLevelWords =
    std::to_array<Word<std::optional<LogLevel>>>({{"passive", std::nullopt},
                                                  {"debug", LogLevel::kDebug},
                                                  {"info", LogLevel::kInfo},
                                                  {"warning", LogLevel::kWarning},
                                                  {"error", LogLevel::kError},
                                                  {"critical", LogLevel::kError}});

}  // namespace tessera
