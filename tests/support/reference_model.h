// For tests: a second Llama-family model, written as plainly as possible from the published formulas. Full
// score matrices, one row of tokens at a time, padding computed like everything else; the only code shared
// with the model under test is the parameter layout. Real is double or float.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "formats/huggingface/model_families.h"
#include "model/families/families.h"
#include "model/llama/llama_tensors.h"
#include "tensor/packed_batch.h"

namespace tessera {

// Matrices are small here: rows of rows.
template <typename Real>
using Rows = std::vector<std::vector<Real>>;

template <typename Real>
class ReferenceModel {
 public:
  explicit ReferenceModel(const ModelConfig& config)
      : config_(config),
        layout_(parameter_layout(config)),
        flat_(static_cast<size_t>(layout_.num_elements()), Real(0)) {
    for (int64_t i = 0; i < rotated() / 2; ++i) {
      frequencies_.push_back(frequency(i, config.rope_theta, config.rope_scaling));
      local_frequencies_.push_back(frequency(i, config.local_rope.theta, config.local_rope.scaling));
    }
  }

  const ParameterLayout& layout() const { return layout_; }
  std::vector<Real>& weights() { return flat_; }

  // Logits of every position of one row.
  Rows<Real> logits(const std::vector<int32_t>& ids) const {
    Rows<Real> x;
    for (const int32_t id : ids) x.push_back(row("model.embed_tokens.weight", id, config_.hidden_size));
    scale(x, config_.embedding_scale);
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const Rows<Real> before = x;
      add(x, output(layer, attention(layer, x), names().attention_output_norm));
      const Rows<Real> in = config_.parallel_blocks ? input(layer, before, names().attention_norm)
                                                    : input(layer, x, names().mlp_norm);
      add(x, output(layer,
                    config_.has_experts(layer) ? mixture(layer, in)
                                               : mlp(layer, in, "mlp.", config_.intermediate_size),
                    names().mlp_output_norm));
    }
    const std::string head = config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    Rows<Real> logits = linear(norm(x, "model.norm.weight"), head, "", config_.vocab_size);
    scale(logits, config_.logits_scale);
    for (std::vector<Real>& of_token : logits) {
      for (Real& logit : of_token) logit = capped(logit, config_.logits_softcap);
    }
    return logits;
  }

  // Sum of a row's token losses, labels shifted by one as Hugging Face does; adds to *num_targets.
  Real loss_sum(const std::vector<int32_t>& ids, const std::vector<int32_t>& labels, Real label_smoothing,
                int64_t* num_targets) const {
    const Rows<Real> all = logits(ids);
    Real sum = 0;
    for (size_t t = 0; t + 1 < ids.size(); ++t) {
      if (labels[t + 1] == kIgnoredLabel) continue;
      ++*num_targets;
      Real largest = all[t][0];
      for (const Real logit : all[t]) largest = std::max(largest, logit);
      Real exponentials = 0;
      for (const Real logit : all[t]) exponentials += std::exp(logit - largest);
      const Real log_sum = largest + std::log(exponentials);
      Real mean_loss = 0;
      for (const Real logit : all[t]) mean_loss += (log_sum - logit) / Real(config_.vocab_size);
      const Real target_loss = log_sum - all[t][static_cast<size_t>(labels[t + 1])];
      sum += (1 - label_smoothing) * target_loss + label_smoothing * mean_loss;
    }
    return sum;
  }

 private:
  const Real* at(const std::string& name) const { return flat_.data() + layout_.at(name).offset; }
  std::vector<Real> row(const std::string& name, int64_t index, int64_t width) const {
    const Real* begin = at(name) + index * width;
    return {begin, begin + width};
  }

  const DecoderNames& names() const { return family_info(config_.family).names; }
  int64_t rotated() const { return config_.rotary_dim == 0 ? config_.head_dim : config_.rotary_dim; }

  static void scale(Rows<Real>& x, double factor) {
    for (std::vector<Real>& row : x) {
      for (Real& value : row) value *= Real(factor);
    }
  }
  static Real capped(Real x, double cap) { return cap == 0 ? x : Real(cap) * std::tanh(x / Real(cap)); }
  // f of the gate.
  Real activated(Real x) const {
    if (config_.activation == Activation::kGatedSilu) return x / (1 + std::exp(-x));
    const Real u = std::sqrt(2 / std::numbers::pi_v<Real>) * (x + Real(0.044715) * x * x * x);
    return Real(0.5) * x * (1 + std::tanh(u));
  }
  // The input of attention or MLP, and their output as it is added to the stream.
  Rows<Real> input(int64_t layer, const Rows<Real>& x, const std::string& norm_name) const {
    if (config_.norm_placement == NormPlacement::kAfter) return x;
    return norm(x, layer_parameter_name(layer, norm_name + ".weight"));
  }
  Rows<Real> output(int64_t layer, Rows<Real> y, const std::string& norm_name) const {
    if (config_.norm_placement != NormPlacement::kBefore)
      return norm(y, layer_parameter_name(layer, norm_name + ".weight"));
    scale(y, config_.residual_scale);
    return y;
  }

  static void add(Rows<Real>& x, const Rows<Real>& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t d = 0; d < x[t].size(); ++d) x[t][d] += y[t][d];
    }
  }

  Rows<Real> linear(const Rows<Real>& x, const std::string& weight, const std::string& bias,
                    int64_t width) const {
    const Real* first_w = at(weight);
    const Real* first_b = bias.empty() ? nullptr : at(bias);
    Rows<Real> y;
    for (const std::vector<Real>& in : x) {
      std::vector<Real> out;
      for (int64_t n = 0; n < width; ++n) {
        const Real* w = first_w + n * static_cast<int64_t>(in.size());
        Real sum = first_b == nullptr ? Real(0) : first_b[n];
        for (size_t k = 0; k < in.size(); ++k) sum += in[k] * w[k];
        out.push_back(sum);
      }
      y.push_back(out);
    }
    return y;
  }

  std::vector<Real> norm(const std::vector<Real>& x, const std::string& weight) const {
    Real mean = 0, squares = 0;
    if (config_.norm == NormKind::kLayer) {
      for (const Real value : x) mean += value / Real(x.size());
    }
    for (const Real value : x) squares += (value - mean) * (value - mean);
    const Real rstd = 1 / std::sqrt(squares / Real(x.size()) + Real(config_.rms_norm_eps));
    const Real* w = at(weight);
    std::vector<Real> y;
    const Real offset = config_.norm == NormKind::kRmsPlusOne ? 1 : 0;
    for (size_t i = 0; i < x.size(); ++i) y.push_back((x[i] - mean) * rstd * (offset + w[i]));
    return y;
  }
  Rows<Real> norm(const Rows<Real>& x, const std::string& weight) const {
    Rows<Real> y;
    for (const std::vector<Real>& in : x) y.push_back(norm(in, weight));
    return y;
  }

  Real frequency(int64_t i, double theta, const RopeScaling& scaling) const {
    const Real f = 1 / std::pow(Real(theta), Real(2 * i) / Real(rotated()));
    if (scaling.type == RopeType::kDefault) return f;
    if (scaling.type == RopeType::kLinear) return f / Real(scaling.factor);
    if (scaling.type == RopeType::kYarn) {
      // The index of the frequency that turns so often over the original length.
      const auto index_of = [&](double turns) {
        const double wavelength = static_cast<double>(scaling.original_max_position_embeddings) / turns;
        return static_cast<double>(rotated()) * std::log(wavelength / (2 * std::numbers::pi)) /
               (2 * std::log(theta));
      };
      double low = index_of(scaling.beta_fast), high = index_of(scaling.beta_slow);
      if (scaling.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = std::max(low, 0.0);
      high = std::min(high, static_cast<double>(rotated() - 1));
      const Real ramp = Real(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
      return (1 - ramp) * f + ramp * f / Real(scaling.factor);
    }
    const Real turns = Real(scaling.original_max_position_embeddings) * f / (2 * std::numbers::pi_v<Real>);
    if (turns < Real(scaling.low_freq_factor)) return f / Real(scaling.factor);
    if (turns > Real(scaling.high_freq_factor)) return f;
    const Real smooth = (turns - Real(scaling.low_freq_factor)) /
                        (Real(scaling.high_freq_factor) - Real(scaling.low_freq_factor));
    return (1 - smooth) * f / Real(scaling.factor) + smooth * f;
  }

  std::vector<Real> rotate(const std::vector<Real>& head, size_t position, bool is_local) const {
    const std::vector<Real>& frequencies = is_local ? local_frequencies_ : frequencies_;
    const RopeScaling& scaling = is_local ? config_.local_rope.scaling : config_.rope_scaling;
    const size_t half = frequencies.size();
    std::vector<Real> result = head;
    for (size_t i = 0; i < half; ++i) {
      const Real angle = Real(position) * frequencies[i];
      const Real c = Real(scaling.attention_factor) * std::cos(angle);
      const Real s = Real(scaling.attention_factor) * std::sin(angle);
      const size_t first = config_.rope_interleaved ? 2 * i : i;
      const size_t second = config_.rope_interleaved ? 2 * i + 1 : i + half;
      result[first] = head[first] * c - head[second] * s;
      result[second] = head[second] * c + head[first] * s;
    }
    return result;
  }

  // Rotates heads as the layer does.
  void rotate_all(int64_t layer, std::vector<Rows<Real>>& heads, bool is_query) const {
    const LayerRope rope =
        config_.layer_rope.empty() ? LayerRope::kGlobal : config_.layer_rope[static_cast<size_t>(layer)];
    if (rope == LayerRope::kNone) return;
    for (Rows<Real>& head : heads) {
      for (size_t t = 0; t < head.size(); ++t) {
        head[t] = rotate(head[t], t, rope == LayerRope::kLocal);
        if (!is_query || config_.query_scale_beta == 0) continue;
        const double block =
            std::floor(static_cast<double>(t) / static_cast<double>(config_.query_scale_positions));
        for (Real& value : head[t]) value *= Real(1 + config_.query_scale_beta * std::log(1 + block));
      }
    }
  }

  // [head][token][E], normalised if the model does so.
  std::vector<Rows<Real>> heads(Rows<Real> projected, std::string norm_name) const {
    if (!norm_name.empty() && config_.qk_norm_whole) {
      projected = norm(projected, norm_name);
      norm_name.clear();
    }
    const auto size = static_cast<size_t>(config_.head_dim);
    std::vector<Rows<Real>> result(projected[0].size() / size);
    for (size_t h = 0; h < result.size(); ++h) {
      for (size_t t = 0; t < projected.size(); ++t) {
        const auto begin = projected[t].begin() + static_cast<int64_t>(h * size);
        std::vector<Real> head(begin, begin + config_.head_dim);
        if (!norm_name.empty()) head = norm(head, norm_name);
        result[h].push_back(head);
      }
    }
    return result;
  }

  Rows<Real> attention(int64_t layer, const Rows<Real>& x) const {
    const auto name = [&](const std::string& suffix) { return layer_parameter_name(layer, suffix); };
    const auto bias = [&](bool present, const std::string& suffix) { return present ? name(suffix) : ""; };
    const int64_t q_width = config_.num_attention_heads * config_.head_dim;
    const int64_t kv_width = config_.num_key_value_heads * config_.head_dim;
    const int64_t window =
        config_.sliding_window.empty() ? 0 : config_.sliding_window[static_cast<size_t>(layer)];
    const Rows<Real> in = input(layer, x, names().attention_norm);
    const auto project = [&](const std::string& which, int64_t width) {
      return linear(in, name("self_attn." + which + "_proj.weight"),
                    bias(config_.qkv_bias, "self_attn." + which + "_proj.bias"), width);
    };
    auto q = heads(project("q", q_width), bias(config_.qk_norm, "self_attn.q_norm.weight"));
    auto k = heads(project("k", kv_width), bias(config_.qk_norm, "self_attn.k_norm.weight"));
    const auto v = heads(project("v", kv_width), "");
    rotate_all(layer, q, /*is_query=*/true);
    rotate_all(layer, k, /*is_query=*/false);
    const Real score_scale =
        config_.attention_scale == 0 ? 1 / std::sqrt(Real(config_.head_dim)) : Real(config_.attention_scale);

    Rows<Real> out(x.size());
    for (size_t h = 0; h < q.size(); ++h) {
      const size_t g = h / (q.size() / k.size());
      for (size_t t = 0; t < x.size(); ++t) {
        std::vector<Real> weights(x.size(), Real(0));  // softmax over the whole row, masked ones zero
        Real total = config_.attention_sinks ? std::exp(at(name(names().sinks))[h]) : Real(0);
        for (size_t s = 0; s <= t; ++s) {
          if (window > 0 && static_cast<int64_t>(t - s) >= window) continue;
          Real score = 0;
          for (size_t e = 0; e < q[h][t].size(); ++e) score += q[h][t][e] * k[g][s][e];
          weights[s] = std::exp(capped(score * score_scale, config_.attention_softcap));
          total += weights[s];
        }
        for (size_t e = 0; e < q[h][t].size(); ++e) {
          Real sum = 0;
          for (size_t s = 0; s < x.size(); ++s) sum += weights[s] / total * v[g][s][e];
          out[t].push_back(sum);
        }
      }
    }
    return linear(out, name("self_attn.o_proj.weight"), bias(config_.o_bias, "self_attn.o_proj.bias"),
                  config_.hidden_size);
  }

  // Every token alone: the softmax of its router, its most probable experts, the sum of their outputs.
  Rows<Real> mixture(int64_t layer, const Rows<Real>& in) const {
    const MixtureOfExperts& experts = *config_.experts;
    const std::string router = layer_parameter_name(layer, names().router);
    const Rows<Real> logits =
        linear(in, router + ".weight", experts.fused ? router + ".bias" : "", experts.num_experts);
    Rows<Real> out;
    for (size_t t = 0; t < in.size(); ++t) {
      std::vector<std::pair<Real, int64_t>> chosen;  // of the largest probability first
      Real all = 0;
      for (int64_t e = 0; e < experts.num_experts; ++e) {
        chosen.push_back({std::exp(logits[t][static_cast<size_t>(e)]), e});
        all += chosen.back().first;
      }
      std::sort(chosen.rbegin(), chosen.rend());
      chosen.resize(static_cast<size_t>(experts.num_experts_per_tok));
      Real of_chosen = 0;
      for (const auto& [p, e] : chosen) of_chosen += p;
      std::vector<Real> sum(static_cast<size_t>(config_.hidden_size));
      for (const auto& [p, e] : chosen) {
        const std::string expert = "mlp.experts." + std::to_string(e) + ".";
        const Rows<Real> y = experts.fused ? Rows<Real>{fused_expert(layer, e, in[t])}
                                           : mlp(layer, {in[t]}, expert, experts.moe_intermediate_size);
        const Real weight = p / (experts.norm_topk_prob ? of_chosen : all);
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * y[0][d];
      }
      out.push_back(sum);
    }
    return out;
  }

  // An expert of matrices [in, out] with the columns [gate, up, gate, up, ...].
  std::vector<Real> fused_expert(int64_t layer, int64_t expert, const std::vector<Real>& in) const {
    const ClampedSwiglu& clamp = *config_.experts->fused;
    const auto limit = Real(clamp.limit);
    const std::string experts = layer_parameter_name(layer, "mlp.experts.");
    const auto product = [&](const std::vector<Real>& x, const std::string& matrix, int64_t width) {
      const Real* w = at(slice_name(experts + matrix, expert));
      const Real* b = at(experts + matrix + "_bias") + expert * width;
      std::vector<Real> y(b, b + width);
      for (size_t k = 0; k < x.size(); ++k) {
        for (int64_t n = 0; n < width; ++n)
          y[static_cast<size_t>(n)] += x[k] * w[static_cast<int64_t>(k) * width + n];
      }
      return y;
    };
    const int64_t F = config_.experts->moe_intermediate_size;
    const std::vector<Real> pre = product(in, "gate_up_proj", 2 * F);
    std::vector<Real> h;
    for (size_t f = 0; f < pre.size(); f += 2) {
      const Real gate = std::min(pre[f], limit), up = std::clamp(pre[f + 1], -limit, limit);
      h.push_back((up + 1) * gate / (1 + std::exp(-Real(clamp.alpha) * gate)));
    }
    return product(h, "down_proj", config_.hidden_size);
  }

  Rows<Real> mlp(int64_t layer, const Rows<Real>& in, const std::string& module, int64_t width) const {
    const auto name = [&](const std::string& suffix) { return layer_parameter_name(layer, suffix); };
    const bool has_bias = config_.mlp_bias && module == "mlp.";
    const auto project = [&](const Rows<Real>& from, const std::string& which, int64_t out_width) {
      return linear(from, name(module + which + "_proj.weight"),
                    has_bias ? name(module + which + "_proj.bias") : "", out_width);
    };
    Rows<Real> gate = project(in, "gate", width);
    const Rows<Real> up = project(in, "up", width);
    for (size_t t = 0; t < in.size(); ++t) {
      for (size_t f = 0; f < gate[t].size(); ++f) {
        gate[t][f] = activated(gate[t][f]) * up[t][f];
      }
    }
    return project(gate, "down", config_.hidden_size);
  }

  ModelConfig config_;
  ParameterLayout layout_;
  std::vector<Real> flat_;
  std::vector<Real> frequencies_, local_frequencies_;
};

}  // namespace tessera
