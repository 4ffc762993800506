#include "forecast/fit/candidate.h"

#include <fmt/format.h>

#include <algorithm>

#include "settings/choices.h"

namespace tessera {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::optional<int64_t>& value) {
  return value ? fmt::format("{}", *value) : "none";
}
template <Choice E>
std::string text_of(E value) {
  return std::string(word_of(value));
}

// A setting of a candidate, and the flag by which a user gives it.
struct Field {
  const char* flag;
  bool (*is_same)(const FitCandidate&, const FitCandidate&);
  std::string (*text)(const FitCandidate&);
};
template <auto kMember>
constexpr Field field(const char* flag) {
  return {flag, [](const FitCandidate& a, const FitCandidate& b) { return a.*kMember == b.*kMember; },
          [](const FitCandidate& of) { return text_of(of.*kMember); }};
}
// Where something is kept: cpu and none are both memory.
template <auto kMember>
constexpr Field place(const char* flag) {
  Field out = field<kMember>(flag);
  out.is_same = [](const FitCandidate& a, const FitCandidate& b) {
    return (a.*kMember == OffloadDevice::kNvme) == (b.*kMember == OffloadDevice::kNvme);
  };
  return out;
}
constexpr Field kFields[] = {field<&FitCandidate::optimizer>("optim"),
                             place<&FitCandidate::state>("offload_optimizer_device"),
                             place<&FitCandidate::weights>("offload_param_device"),
                             field<&FitCandidate::updates_in_backward>("optimizer_in_backward"),
                             field<&FitCandidate::clip>("clip_mode"),
                             field<&FitCandidate::recomputes>("gradient_checkpointing"),
                             field<&FitCandidate::recomputed>("gradient_checkpointing_mode"),
                             field<&FitCandidate::base_bits>("quantization_bit")};

struct Alternative {
  const char* word;
  int change;
  void (*choose)(FitCandidate*);
};

void recompute(FitCandidate* of, CheckpointingMode mode) {
  of->recomputes = true;
  of->recomputed = mode;
}
void update_in_backward(FitCandidate* of, ClipMode clip) {
  of->updates_in_backward = true;
  of->clip = clip;
}

// By FitAxis, the simplest first.
const std::array<std::vector<Alternative>, kNumFitAxes> kAlternatives = {{
    {{"exact", 0, [](FitCandidate* of) { of->optimizer = OptimizerForm::kAdamW; }},
     {"bf16", 1, [](FitCandidate* of) { of->optimizer = OptimizerForm::kAdamWHalf; }},
     {"8-bit", 2, [](FitCandidate* of) { of->optimizer = OptimizerForm::kAdamW8Bit; }}},
    {{"memory", 0, [](FitCandidate* of) { of->state = OffloadDevice::kNone; }},
     {"disk", 0, [](FitCandidate* of) { of->state = OffloadDevice::kNvme; }}},
    {{"memory", 0, [](FitCandidate* of) { of->weights = OffloadDevice::kNone; }},
     {"disk", 0, [](FitCandidate* of) { of->weights = OffloadDevice::kNvme; }}},
    {{"after", 0, [](FitCandidate* of) { of->updates_in_backward = false; }},
     {"twice", 0, [](FitCandidate* of) { update_in_backward(of, ClipMode::kGlobal); }},
     {"previous", 1, [](FitCandidate* of) { update_in_backward(of, ClipMode::kPrevious); }},
     {"layer", 2, [](FitCandidate* of) { update_in_backward(of, ClipMode::kLayer); }}},
    {{"kept", 0, [](FitCandidate* of) { of->recomputes = false; }},
     {"selective", 0, [](FitCandidate* of) { recompute(of, CheckpointingMode::kSelective); }},
     {"full", 0, [](FitCandidate* of) { recompute(of, CheckpointingMode::kFull); }},
     {"disk", 0, [](FitCandidate* of) { recompute(of, CheckpointingMode::kOffload); }}},
    {{"bf16", 0, [](FitCandidate* of) { of->base_bits = std::nullopt; }},
     {"int8", 1, [](FitCandidate* of) { of->base_bits = 8; }},
     {"nf4", 2, [](FitCandidate* of) { of->base_bits = 4; }}},
}};

// Snapshots in memory are of one optimizer; without clipping, its norm does not matter; the gradients of
// adapters are small; trained weights are not quantized. The other names of quantization_bit decide in its
// place.
bool makes_sense(const RunSpec& spec, FitAxis axis, const Alternative& alternative) {
  const bool is_lora = spec.lora.finetuning_type == FinetuningType::kLora;
  FitCandidate chosen;
  alternative.choose(&chosen);
  if (axis == FitAxis::kOptimizer && spec.saving.peer_snapshot_steps > 0)
    return chosen.optimizer == spec.optimizer.form;
  if (axis == FitAxis::kBase) {
    const auto& given = spec.sources.given;
    return !given.contains("load_in_8bit") && !given.contains("load_in_4bit") &&
           (!chosen.base_bits || is_lora);
  }
  if (axis != FitAxis::kUpdate || !chosen.updates_in_backward) return true;
  return !is_lora && (spec.clipping.max_norm > 0 || alternative.change == 0);
}

// Whether it leaves what was given as it is.
bool is_allowed(const RunSpec& spec, const Alternative& alternative) {
  const FitCandidate given = candidate_of(spec);
  FitCandidate chosen = given;
  alternative.choose(&chosen);
  return std::ranges::all_of(kFields, [&](const Field& field) {
    return !spec.sources.given.contains(field.flag) || field.is_same(chosen, given);
  });
}

}  // namespace

std::vector<NamedCandidate> candidates_of(const RunSpec& spec) {
  std::vector<NamedCandidate> candidates = {{.candidate = candidate_of(spec), .words = {}, .changes = {}}};
  for (size_t i = 0; i < kNumFitAxes; ++i) {
    const auto axis = static_cast<FitAxis>(i);
    std::vector<NamedCandidate> more;
    for (NamedCandidate& each : candidates) {
      const size_t num_before = more.size();
      for (const Alternative& alternative : kAlternatives[i]) {
        if (!is_allowed(spec, alternative) || !makes_sense(spec, axis, alternative)) continue;
        NamedCandidate& next = more.emplace_back(each);
        alternative.choose(&next.candidate);
        next.words[i] = alternative.word;
        if (axis == FitAxis::kBase) next.changes[0] = alternative.change;
        if (axis == FitAxis::kOptimizer) next.changes[1] = alternative.change;
        if (axis == FitAxis::kUpdate) next.changes[2] = alternative.change;
      }
      if (more.size() > num_before) continue;
      each.words[i] = "given";
      more.push_back(each);
    }
    candidates = std::move(more);
  }
  return candidates;
}

std::vector<std::string> candidate_flags(const RunSpec& spec, const FitCandidate& candidate) {
  const FitCandidate given = candidate_of(spec);
  std::vector<std::string> flags;
  for (const Field& field : kFields) {
    if (field.is_same(candidate, given)) continue;
    const std::string value = field.text(candidate);
    flags.push_back(value == "true" ? fmt::format("--{}", field.flag)
                                    : fmt::format("--{} {}", field.flag, value));
  }
  return flags;
}

}  // namespace tessera
