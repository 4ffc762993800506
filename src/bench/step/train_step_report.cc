// Formats a measured training step as text and as JSON.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "bench/bench_line.h"
#include "bench/step/train_step_bench.h"

namespace tessera {
namespace {

std::string spread(const Quartiles& q, int decimals) {
  return fmt::format("{:.{}f}-{:.{}f}", q.q1, decimals, q.q3, decimals);
}

}  // namespace

std::string train_step_table(const TrainStepLine& line) {
  const TrainStepOptions& options = line.options;
  std::string text = fmt::format(
      "{}, {}{}, {}: {} x {} x {}, activation checkpointing {}\n", options.name,
      format_count(options.config.num_hidden_layers, "layer"), options.with_head ? " with head" : "",
      dtype_name(options.dtype), options.gradient_accumulation_steps, options.micro_batch,
      format_count(options.max_length, "token"), options.gradient_checkpointing ? "on" : "off");
  if (options.config.lora) {
    text += fmt::format("  adapters of rank {}, quantisation of the frozen weights: {}\n",
                        options.config.lora->r, quantization_name(options.config.base_quantization));
  }
  const auto row = [&](const char* name, const std::string& value, const std::string& quartile_text) {
    text += fmt::format("  {:<28} {:>12}   {}\n", name, value, quartile_text);
  };
  const auto seconds = [&](const char* name, const Quartiles& q) {
    row(name, fmt::format("{:.4f} s", q.median), spread(q, 4));
  };
  text += fmt::format("  {:<28} {:>12}   {}\n", "", "median", "quartiles");
  row("MFU, whole step", fmt::format("{:.3f}", line.mfu.median), spread(line.mfu, 3));
  row("MFU, forward + backward", fmt::format("{:.3f}", line.mfu_forward_backward.median),
      spread(line.mfu_forward_backward, 3));
  row("tokens/s, whole step", fmt::format("{:.1f}", line.tokens_per_second.median),
      spread(line.tokens_per_second, 1));
  row("tokens/s, forward + backward", fmt::format("{:.1f}", line.tokens_per_second_forward_backward.median),
      spread(line.tokens_per_second_forward_backward, 1));
  row("peak, TFLOPS", fmt::format("{:.2f}", line.peak.median), spread(line.peak, 2) + "  " + line.peak_name);
  seconds("forward", line.forward_seconds);
  if (options.with_head) seconds("head and loss", line.head_seconds);
  seconds("backward", line.backward_seconds);
  seconds("optimizer", line.optimizer_seconds);
  seconds("step", line.step_seconds);
  row("peak memory", format_bytes(line.measured_bytes), "predicted " + format_bytes(line.predicted_bytes));
  if (line.against) {
    const AgainstOther& other = *line.against;
    text += fmt::format("  times faster than {}\n", other.name);
    const auto ratio = [&](const char* name, const Quartiles& q, double other_seconds) {
      row(name, fmt::format("{:.2f} x", q.median), fmt::format("{}  {:.3f} s", spread(q, 2), other_seconds));
    };
    ratio("  forward + backward", other.ratio_forward_backward, other.forward_backward_seconds.median);
    ratio("  optimizer", other.ratio_optimizer, other.optimizer_seconds.median);
    ratio("  whole step", other.ratio_step,
          other.forward_backward_seconds.median + other.optimizer_seconds.median);
  }
  if (line.ratio_full_step) {
    const auto ratio = [&](const char* name, const Quartiles& q) {
      row(name, fmt::format("{:.3f} x", q.median), spread(q, 3));
    };
    text += "  times faster than training all weights\n";
    ratio("  forward + backward", *line.ratio_full_forward_backward);
    ratio("  whole step", *line.ratio_full_step);
  }
  text += fmt::format("  of {}, {}, {:.3f} TFLOP a step, {} at once\n", format_count(line.rounds, "step"),
                      format_count(line.num_parameters, "parameter"), line.step_tflop,
                      format_count(line.pass_tokens, "token"));
  for (const auto& [name, share] : line.operation_shares) {
    constexpr double kSmallestShown = 0.0005;
    if (share >= kSmallestShown) text += fmt::format("    {:<26} {:>10.1f} %\n", name, 100 * share);
  }
  return text;
}

std::string train_step_json(const TrainStepLine& line, int64_t num_threads) {
  const TrainStepOptions& options = line.options;
  nlohmann::ordered_json json = {
      {"benchmark", "train-step"},
      {"preset", options.name},
      {"layers", options.config.num_hidden_layers},
      {"dtype", dtype_name(options.dtype)},
      {"max_length", options.max_length},
      {"micro_batch", options.micro_batch},
      {"gradient_accumulation_steps", options.gradient_accumulation_steps},
      {"gradient_checkpointing", options.gradient_checkpointing},
      {"merge_micro_batches", std::string(word_of(options.merge_micro_batches))},
      {"pass_tokens", line.pass_tokens},
      {"with_head", options.with_head},
      {"operations", line.operations},
      {"num_parameters", line.num_parameters},
      {"step_tflop", line.step_tflop},
      {"rounds", line.rounds},
      {"tokens_per_second", to_json(line.tokens_per_second)},
      {"mfu", to_json(line.mfu)},
      {"tokens_per_second_forward_backward", to_json(line.tokens_per_second_forward_backward)},
      {"mfu_forward_backward", to_json(line.mfu_forward_backward)},
      {"peak_tflops", to_json(line.peak)},
      {"peak_name", line.peak_name},
      {"step_seconds", to_json(line.step_seconds)},
      {"forward_seconds", to_json(line.forward_seconds)},
      {"head_seconds", to_json(line.head_seconds)},
      {"backward_seconds", to_json(line.backward_seconds)},
      {"optimizer_seconds", to_json(line.optimizer_seconds)},
      {"verified",
       {{"elements", line.verification.num_checked},
        {"worst_error_in_bounds", line.verification.worst_error}}},
      {"predicted_memory_bytes", line.predicted_bytes},
      {"peak_memory_bytes", nullptr}};
  if (line.measured_bytes > 0) json["peak_memory_bytes"] = line.measured_bytes;
  json["against"] = nullptr;
  if (line.against) {
    const AgainstOther& other = *line.against;
    json["against"] = {{"name", other.name},
                       {"forward_backward_seconds", to_json(other.forward_backward_seconds)},
                       {"optimizer_seconds", to_json(other.optimizer_seconds)},
                       {"ratio_forward_backward", to_json(other.ratio_forward_backward)},
                       {"ratio_optimizer", to_json(other.ratio_optimizer)},
                       {"ratio_step", to_json(other.ratio_step)}};
  }
  if (line.ratio_full_step) {
    json["lora_rank"] = options.config.lora->r;
    json["weights"] = quantization_name(options.config.base_quantization);
    json["ratio_full_forward_backward"] = to_json(*line.ratio_full_forward_backward);
    json["ratio_full_step"] = to_json(*line.ratio_full_step);
  }
  nlohmann::ordered_json operation_shares = nlohmann::ordered_json::object();
  for (const auto& [name, share] : line.operation_shares) operation_shares[name] = share;
  json["operation_shares"] = operation_shares;
  json.update(machine_json(num_threads));
  return json.dump() + "\n";
}

}  // namespace tessera
