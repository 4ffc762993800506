#include "support/checkpoint_test_support.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <thread>

#include "base/error.h"
#include "base/rng.h"

namespace tessera {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool can_save(float master, DType dtype) {
  if (!std::isfinite(master)) return false;
  if (dtype == DType::kF16) return std::isfinite(to_float(to_f16(master)));
  return dtype == DType::kF32 || std::isfinite(to_float(master_weight(master)));
}

}  // namespace

StateSource TestState::source() const {
  return [this](StateKind kind, int64_t begin, std::span<float> values) {
    std::copy_n(of(kind).begin() + begin, values.size(), values.begin());
  };
}

StateSink TestState::sink() {
  return [this](StateKind kind, int64_t begin, std::span<const float> values) {
    std::copy(values.begin(), values.end(), of(kind).begin() + begin);
  };
}

bool TestState::operator==(const TestState& other) const {
  return std::ranges::equal(arrays, other.arrays, same_bits);
}

ModelConfig checkpoint_test_config() {
  ModelConfig config = preset_config("15m");
  config.vocab_size = 33003;
  config.hidden_size = 72;
  config.intermediate_size = 100;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.num_key_value_heads = 1;
  config.head_dim = 24;
  config.sliding_window.assign(2, 0);
  config.tie_word_embeddings = true;
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  return config;
}

ModelConfig tiny_checkpoint_config() {
  ModelConfig config = checkpoint_test_config();
  config.vocab_size = 40;
  config.hidden_size = 8;
  config.intermediate_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 1;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.sliding_window.assign(1, 0);
  config.qkv_bias = config.o_bias = config.mlp_bias = false;
  return config;
}

TestState zero_state(const ParameterLayout& layout, StateTensors tensors) {
  const std::vector<float> zeros(static_cast<size_t>(layout.num_elements()));
  return {tensors, std::vector(1 + tensors.size(), zeros)};
}

namespace {

// The bits of a random word that leave a value which the type can keep or, for codes, one that is finite.
uint32_t kept_bits(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0xFF7F0000u;
    case DType::kI8:
      return 0xBFFFFFFFu;
    case DType::kU8:
      return 0x3FFFFFFFu;
    default:
      return 0xFFFFFFFFu;
  }
}

}  // namespace

TestState random_state(const ParameterLayout& layout, DType dtype, uint64_t seed, StateTensors tensors) {
  TestState state = zero_state(layout, tensors);
  for (const Parameter& parameter : layout.parameters()) {
    for (int64_t i = parameter.offset; i < parameter.offset + parameter.num_elements; ++i) {
      const auto at = static_cast<size_t>(i);
      std::array<uint32_t, 4> words = philox4x32(seed, static_cast<uint64_t>(i), 0);
      for (uint64_t again = 1; !can_save(std::bit_cast<float>(words[0]), dtype); ++again) {
        words = philox4x32(seed, static_cast<uint64_t>(i), again);
      }
      // In every 16 values one is a tie between two BF16 values and one is subnormal or zero.
      if (i % 16 == 0) words[0] = (words[0] & 0xBFFF0000u) | 0x8000u;
      if (i % 16 == 1) words[0] &= 0x807FFFFFu;
      state.masters()[at] = std::bit_cast<float>(words[0]);
      for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        state.of(state_kind(tensor))[at] =
            std::bit_cast<float>(words[1 + tensor % 3] & kept_bits(tensors[tensor].dtype));
      }
    }
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      if (!is_block_code(tensors[tensor].dtype)) continue;
      const std::span<float> values =
          std::span(state.of(state_kind(tensor)))
              .subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.num_elements));
      std::vector<std::byte> codes(
          static_cast<size_t>(state_bytes(tensors[tensor].dtype, parameter.num_elements)));
      encode_values(tensors[tensor].dtype, values, codes.data());
      read_codes(tensors[tensor].dtype, codes.data(), 0, values);
    }
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const int64_t stored = num_values(tensors[tensor].extent, shape_of(parameter), parameter.num_elements);
      std::fill_n(state.of(state_kind(tensor)).begin() + parameter.offset + stored,
                  parameter.num_elements - stored, 0.0f);
    }
  }
  return state;
}

std::vector<ElementRange> everything(const ParameterLayout& layout) { return {{0, layout.num_elements()}}; }

std::vector<ElementRange> test_shard(const ParameterLayout& layout, int rank, int world_size,
                                     StateTensors tensors) {
  std::vector<ElementRange> ranges;
  if (!is_elementwise(tensors)) {
    const std::vector<Parameter>& parameters = layout.parameters();
    for (auto i = static_cast<size_t>(rank); i < parameters.size(); i += static_cast<size_t>(world_size)) {
      ranges.push_back({parameters[i].offset, parameters[i].offset + parameters[i].num_elements});
    }
    return ranges;
  }
  for (const ParameterLayout::Group& group : layout.groups()) {
    const int64_t share = (group.end - group.begin + world_size - 1) / world_size;
    const int64_t part = (share + kParameterAlignment - 1) / kParameterAlignment * kParameterAlignment;
    const int64_t begin = std::min(group.end, group.begin + rank * part);
    ranges.push_back({begin, std::min(group.end, begin + part)});
  }
  return ranges;
}

CheckpointPlan TestCheckpoint::plan(const ModelConfig& config, const ParameterLayout& layout,
                                    int rank) const {
  CheckpointPlan plan;
  plan.folder = output_dir / ("checkpoint-" + std::to_string(step));
  plan.config = &config;
  plan.layout = &layout;
  plan.state_tensors = tensors;
  plan.export_options = export_options;
  plan.rank = rank;
  plan.world_size = world_size;
  return plan;
}

RunRecord test_record(int64_t step) {
  return {step, "{\"seed\": 42, \"rate\": 0.1}", "{\"global_step\": 1}\n", "{\"seed\": 42}\n"};
}

std::filesystem::path write_checkpoint(const TestCheckpoint& checkpoint, const ModelConfig& config,
                                       const ParameterLayout& layout, const TestState& state) {
  create_checkpoint(checkpoint.plan(config, layout));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(checkpoint.world_size));
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < checkpoint.world_size; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          ThreadPool pool(1);
          CheckpointWriter writer(checkpoint.plan(config, layout, rank),
                                  test_shard(layout, rank, checkpoint.world_size, checkpoint.tensors),
                                  state.source(), checkpoint.write_options, pool);
          writer.wait();
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    abandon_checkpoint(checkpoint.plan(config, layout));
    std::rethrow_exception(error);
  }
  commit_checkpoint(checkpoint.plan(config, layout), test_record(checkpoint.step));
  return checkpoint.plan(config, layout).folder;
}

TestState load_checkpoint(const CheckpointReader& reader, const ParameterLayout& layout, int num_readers,
                          StateTensors tensors) {
  TestState state = zero_state(layout, tensors);
  ThreadPool pool(2);
  for (int rank = 0; rank < num_readers; ++rank) {
    reader.load(layout, tensors, test_shard(layout, rank, num_readers, tensors), state.sink(), pool);
  }
  return state;
}

}  // namespace tessera
