#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "forecast/forecast.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

using OrderedJson = nlohmann::ordered_json;

const char* schedule_name(GatherSchedule schedule) {
  return schedule == GatherSchedule::kPerStep ? "per_step" : "per_layer";
}

// "0.42 s", "18.3 s", "1,234 s", "7.51 h".
std::string seconds_text(double seconds) {
  constexpr double kManySeconds = 10'000;
  const bool in_hours = seconds >= kManySeconds;
  const double value = in_hours ? seconds / 3600 : seconds;
  const char* unit = in_hours ? "h" : "s";
  if (value >= 1000) return fmt::format("{} {}", format_count(std::llround(value)), unit);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, unit);
}

std::string network_text(const RunForecast& forecast) {
  const std::optional<GradientCode> gradients = forecast.zero.quantized_gradients;
  std::string text =
      fmt::format("network  {:.4g} Gbit/s a node; in a step{}{}\n", forecast.cluster.network_gbps,
                  forecast.zero.quantized_weights ? ", weights in int8" : "",
                  !gradients                          ? ""
                  : *gradients == GradientCode::kInt8 ? ", gradients in int8"
                                                      : ", gradients in int4");
  const auto add_line = [&](const std::string& schedule, const std::string& fits,
                            const std::vector<std::string>& sizes, const std::vector<std::string>& times) {
    text += fmt::format("  {:<9}  {:>4}", schedule, fits);
    for (const std::string& size : sizes) text += fmt::format("  {:>10}", size);
    for (const std::string& time : times) text += fmt::format("  {:>7}", time);
    text += "\n";
  };
  add_line("schedule", "fits", {"memory", "gathered", "reduced"}, {"network", "exposed", "step"});
  const auto add_traffic = [&](const char* name, const std::string& fits, const std::string& memory,
                               const TrafficForecast& traffic) {
    const auto time = [&](auto part) {
      return traffic.time ? seconds_text(std::invoke(part, *traffic.time)) : "-";
    };
    add_line(name, fits,
             {memory, format_bytes(traffic.wire.received_gather), format_bytes(traffic.wire.sent_reduce)},
             {seconds_text(traffic.network_s), time(&StepTime::exposed_s), time(&StepTime::step_s)});
  };
  bool has_int8 = false, has_int4 = false;
  const auto add_schedule = [&](const std::string& name, const ScheduleForecast& each) {
    add_traffic(name.c_str(), each.fits ? "yes" : "no", format_bytes(each.node_bytes), each);
    if (each.int8_weights) add_traffic(" int8", "", "", *each.int8_weights);
    if (each.int4_gradients) {
      add_traffic(" int4", each.int4_fits ? "yes" : "no", format_bytes(each.int4_node_bytes),
                  *each.int4_gradients);
    }
    has_int8 = has_int8 || each.int8_weights;
    has_int4 = has_int4 || each.int4_gradients;
  };
  const auto apart_name = [](int64_t sync_every) { return fmt::format("every {}", sync_every); };
  for (const ScheduleForecast& each : forecast.schedules) {
    add_schedule(
        forecast.zero.outer ? apart_name(forecast.zero.outer->sync_every) : schedule_name(each.schedule),
        each);
  }
  if (forecast.seldom) add_schedule(apart_name(kForecastSyncEvery), *forecast.seldom);
  for (const ScheduleForecast& each : forecast.schedules) {
    if (each.divides_experts)
      text += fmt::format("  ({}: with experts divided among nodes, to which {} of rows go)\n",
                          schedule_name(each.schedule), format_bytes(each.wire.tokens));
  }
  if (has_int8) text += "  (int8: with --zero_quantized_weights true)\n";
  if (has_int4) {
    text += fmt::format("  (int4: with --zero_quantized_gradients int4{})\n",
                        has_int8 ? " and --zero_quantized_weights true" : "");
  }
  if (forecast.seldom) {
    text += fmt::format("  (every {0}: with --sync_every {0}, which trains otherwise; means of its steps)\n",
                        kForecastSyncEvery);
  }
  return text;
}

OrderedJson memory_json(const RunForecast& forecast) {
  OrderedJson out = {{"items", memory_items_json(forecast.memory)},
                     {"private_bytes", forecast.memory.private_bytes()},
                     {"shared_bytes", forecast.memory.shared_bytes()},
                     {"rank_bytes", forecast.memory.rank_bytes()},
                     {"node_bytes", forecast.memory.node_bytes()},
                     {"job_bytes", forecast.memory.job_bytes()},
                     {"available_bytes", forecast.cluster.node_memory_bytes},
                     {"available_bytes_are_of_this_machine", forecast.cluster.memory_is_of_this_machine},
                     {"fits", forecast.refusal.empty()},
                     {"refusal", forecast.refusal}};
  if (!forecast.memory.device.empty()) {
    out["device"] = forecast.memory.device;
    out["device_bytes"] = forecast.memory.device_bytes();
    out["device_available_bytes"] = forecast.free_bytes;
  }
  return out;
}

OrderedJson time_json(const std::optional<StepTime>& time) {
  return time ? step_time_json(*time) : OrderedJson();
}

OrderedJson traffic_json(const TrafficForecast& traffic) {
  return {{"sent_gather_bytes", traffic.wire.sent_gather},
          {"received_gather_bytes", traffic.wire.received_gather},
          {"sent_reduce_bytes", traffic.wire.sent_reduce},
          {"received_reduce_bytes", traffic.wire.received_reduce},
          {"sent_token_bytes", traffic.wire.tokens},
          {"network_s", traffic.network_s},
          {"time", time_json(traffic.time)}};
}

OrderedJson schedule_json(const ScheduleForecast& each, int64_t sync_every) {
  OrderedJson schedule = {{"schedule", schedule_name(each.schedule)},
                          {"divides_experts", each.divides_experts},
                          {"sync_every", sync_every},
                          {"node_bytes", each.node_bytes},
                          {"fits", each.fits}};
  schedule.update(traffic_json(each));
  schedule["int8_weights"] = each.int8_weights ? traffic_json(*each.int8_weights) : OrderedJson();
  schedule["int4_gradients"] = each.int4_gradients ? traffic_json(*each.int4_gradients) : OrderedJson();
  if (each.int4_gradients) {
    schedule["int4_gradients"]["node_bytes"] = each.int4_node_bytes;
    schedule["int4_gradients"]["fits"] = each.int4_fits;
  }
  return schedule;
}

OrderedJson schedules_json(const RunForecast& forecast) {
  OrderedJson schedules = OrderedJson::array();
  const int64_t sync_every = forecast.zero.outer ? forecast.zero.outer->sync_every : 0;
  for (const ScheduleForecast& each : forecast.schedules)
    schedules.push_back(schedule_json(each, sync_every));
  if (forecast.seldom) schedules.push_back(schedule_json(*forecast.seldom, kForecastSyncEvery));
  return schedules;
}

double node_tflops(const MachineRates& rates, DType dtype) {
  return static_cast<double>(rates.num_cores) *
         (dtype == DType::kBF16 ? rates.core_bf16_tflops : rates.core_f32_tflops);
}

std::string time_text(const RunForecast& forecast) {
  const ClusterShape& cluster = forecast.cluster;
  const double step_s = forecast.time->step_s();
  const double peak = node_tflops(*cluster.rates, forecast.dtype);
  std::string text = fmt::format(
      "time     {} a step, {} tokens/s\n         {:.4g} TFLOP a node, {:.1f} % of its {:.4g} TFLOPS\n",
      seconds_text(step_s),
      format_count(std::llround(static_cast<double>(forecast.tokens_per_step) / step_s)),
      forecast.tflop_per_step, 100 * forecast.tflop_per_step / step_s / peak, peak);
  if (cluster.rates_are_of_this_machine) {
    text += "         the peak is this machine's, measured now: --tflops sets a node's\n";
  }
  text += indented(step_time_text(*forecast.time));
  if (forecast.job) {
    text += fmt::format("job      {}\n         {} hours\n", job_text(*forecast.job),
                        three_digits(static_cast<double>(forecast.job->num_steps) * step_s / 3600));
  }
  return text;
}

}  // namespace

std::string forecast_text(const RunForecast& forecast) {
  const ClusterShape& cluster = forecast.cluster;
  std::string text =
      fmt::format("model    {}, {}\n", parameters_text(forecast.num_parameters, forecast.num_frozen),
                  dtype_name(forecast.dtype));
  text += fmt::format("ranks    {}, {} each, {} a rank\n", format_count(cluster.num_nodes, "node"),
                      format_count(cluster.local_world_size, "rank"),
                      format_count(forecast.num_threads, "thread"));
  if (cluster.world_size() > 1) {
    text += fmt::format("zero     stage {}, {}{}, gradients {}{}\n", forecast.zero.stage,
                        schedule_name(forecast.zero.schedule), forecast.schedule_is_auto ? " (auto)" : "",
                        dtype_name(forecast.zero.gradient_dtype),
                        forecast.zero.divides_experts ? ", experts divided among nodes" : "");
  }
  text += fmt::format(
      "step     {} in rows of {}{}\npasses   {} a rank, {} each\n",
      format_count(forecast.tokens_per_step, "token"), format_count(forecast.row_tokens),
      forecast.context_size > 1 ? fmt::format(", each shared by {} ranks", forecast.context_size) : "",
      format_count(forecast.zero.passes_per_step), format_count(forecast.tokens_per_pass, "token"));
  text += forecast.memory.device.empty() && cluster.memory_is_of_this_machine
              ? "memory   the free memory is this machine's: --memory sets a node's\n"
              : "memory\n";
  text += indented(memory_table(forecast.memory, forecast.free_bytes));
  text +=
      fmt::format("disk     {} for the model, {} for each checkpoint{}\n",
                  format_bytes(forecast.disk.model_bytes), format_bytes(forecast.disk.checkpoint_bytes),
                  forecast.disk.offload_bytes == 0 ? ""
                                                   : fmt::format(";\n         {} in offload_dir of a node",
                                                                 format_bytes(forecast.disk.offload_bytes)));
  if (forecast.time) text += time_text(forecast);
  if (!forecast.schedules.empty()) text += network_text(forecast);
  return text;
}

std::string forecast_json(const RunForecast& forecast) {
  const ClusterShape& cluster = forecast.cluster;
  const OrderedJson out = {
      {"num_parameters", forecast.num_parameters},
      {"num_frozen", forecast.num_frozen},
      {"dtype", dtype_name(forecast.dtype)},
      {"num_nodes", cluster.num_nodes},
      {"local_world_size", cluster.local_world_size},
      {"num_threads", forecast.num_threads},
      {"zero_stage", forecast.zero.stage},
      {"gather_schedule", schedule_name(forecast.zero.schedule)},
      {"divides_experts", forecast.zero.divides_experts},
      {"gradient_checkpointing", forecast.gradient_checkpointing},
      {"max_length", forecast.row_tokens},
      {"tokens_per_step", forecast.tokens_per_step},
      {"tokens_per_pass", forecast.tokens_per_pass},
      {"passes_per_step", forecast.zero.passes_per_step},
      {"memory", memory_json(forecast)},
      {"disk",
       {{"model_bytes", forecast.disk.model_bytes},
        {"checkpoint_bytes", forecast.disk.checkpoint_bytes},
        {"offload_bytes", forecast.disk.offload_bytes},
        {"bytes_beside_model", forecast.disk.bytes_beside_model()}}},
      {"tflop_per_step", forecast.tflop_per_step},
      {"node_tflops",
       cluster.rates ? OrderedJson(node_tflops(*cluster.rates, forecast.dtype)) : OrderedJson()},
      {"node_tflops_are_of_this_machine", cluster.rates_are_of_this_machine},
      {"time", time_json(forecast.time)},
      {"job", forecast.job ? job_json(*forecast.job) : OrderedJson()},
      {"network_gbps", cluster.network_gbps},
      {"schedules", schedules_json(forecast)}};
  return out.dump(2) + "\n";
}

}  // namespace tessera
