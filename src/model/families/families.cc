#include "model/families/families.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "formats/huggingface/model_families.h"
#include "model/encoder/encoder_model.h"
#include "model/encoder_decoder/encoder_decoder_generator.h"
#include "model/encoder_decoder/encoder_decoder_model.h"
#include "model/llama/llama_generator.h"
#include "model/llama/llama_model.h"

namespace tessera {
namespace {

template <typename Model>
std::unique_ptr<TrainableModel> make(const ModelConfig& config, DType dtype, Ops& ops) {
  return std::make_unique<Model>(config, dtype, ops);
}

// The class that computes families of a kind.
struct Implementation {
  FamilyKind kind;
  std::unique_ptr<TrainableModel> (*make)(const ModelConfig& config, DType dtype, Ops& ops);
  ParameterLayout (*layout)(const ModelConfig& config);
};

constexpr Implementation kImplementations[] = {
    {FamilyKind::kDecoder, make<LlamaModel>, LlamaModel::parameter_layout},
    {FamilyKind::kEncoderDecoder, make<EncoderDecoderModel>, EncoderDecoderModel::parameter_layout},
    {FamilyKind::kEncoder, make<EncoderModel>, EncoderModel::parameter_layout},
};

const Implementation& implementation_of(const ModelConfig& config) {
  const FamilyKind kind = family_info(config.family).kind;
  const auto* found = std::ranges::find(kImplementations, kind, &Implementation::kind);
  TESSERA_CHECK(found != std::end(kImplementations), "no model for family {}", config.family);
  return *found;
}

// Whether the model has an option that only the host's operations know.
bool needs_host(const ModelConfig& config) {
  return config.norm != NormKind::kRms || config.norm_placement != NormPlacement::kBefore ||
         config.parallel_blocks || config.attention_softcap != 0 || config.logits_softcap != 0 ||
         config.qk_norm_whole || config.embedding_scale != 1 || config.residual_scale != 1 ||
         config.logits_scale != 1 || config.rotary_dim != 0 || config.rope_interleaved ||
         config.query_scale_beta != 0 || config.activation != Activation::kGatedSilu;
}

void check_generates(const ModelConfig& config) {
  if (!config.encoder) return;
  fail(ExitCode::kBadConfig,
       "{}: an encoder predicts masked tokens from both sides and writes no text: tessera eval takes it",
       family_info(config.family).architecture);
}

}  // namespace

std::unique_ptr<TrainableModel> make_model(const ModelConfig& config, DType dtype, Ops& ops) {
  if (ops.device().own_memory() && needs_host(config))
    fail(ExitCode::kBadConfig, "{}: {} is computed on processors alone", ops.device().name(),
         family_info(config.family).architecture);
  return implementation_of(config).make(config, dtype, ops);
}

ParameterLayout parameter_layout(const ModelConfig& config) {
  return implementation_of(config).layout(config);
}

std::unique_ptr<TokenGenerator> make_generator(TrainableModel& model, int64_t capacity) {
  check_generates(model.config());
  if (model.config().encoder_decoder) return std::make_unique<EncoderDecoderGenerator>(model, capacity);
  return std::make_unique<LlamaGenerator>(model, capacity);
}

int64_t generator_bytes(const TrainableModel& model, int64_t capacity) {
  check_generates(model.config());
  return model.config().encoder_decoder ? EncoderDecoderGenerator::memory_bytes(model, capacity)
                                        : LlamaGenerator::memory_bytes(model, capacity);
}

}  // namespace tessera
