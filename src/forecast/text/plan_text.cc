#include "forecast/text/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"

namespace tessera {

std::string three_digits(double value) {
  if (value >= 1e9) return three_digits(value / 1e9) + "B";
  if (value >= 1e6) return three_digits(value / 1e6) + "M";
  if (value >= 1e5) return three_digits(value / 1e3) + "k";
  if (value >= 99.95) return format_count(std::llround(value));
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  if (value >= 0.995) return fmt::format("{:.2f}", value);
  return fmt::format("{:#.3g}", value);
}

std::string indented(const std::string& lines) {
  std::string out;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size() - 1) + 1;
    out += "  " + lines.substr(begin, end - begin);
    begin = end;
  }
  return out;
}

std::string wrapped(std::string head, std::span<const std::string> words, size_t indent) {
  std::string text, line = std::move(head);
  for (const std::string& word : words) {
    if (line.size() + 1 + word.size() > kTextColumns) {
      text += line + "\n";
      line = std::string(indent - 1, ' ');
    }
    line += " " + word;
  }
  return text + line + "\n";
}

std::string step_time_text(const StepTime& time) {
  std::string text;
  const auto add = [&](const char* name, double seconds, const std::string& note = "") {
    const std::string value = seconds < 0.01 ? fmt::format("{:.3f}", seconds) : three_digits(seconds);
    text += fmt::format("{:<13}  {:>9} s  {:>3.0f} %{}\n", name, value, 100 * seconds / time.step_s(), note);
  };
  add("products", time.products_s);
  add("attention", time.attention_s);
  add("element-wise", time.elementwise_s);
  add("optimizer", time.optimizer_s);
  if (time.local_s > 0) add("ranks of node", time.local_s);
  if (time.network_s > 0) {
    add("network", time.exposed_s,
        fmt::format("  exposed, of {} s between nodes", three_digits(time.network_s)));
  }
  if (time.disk_s > 0) {
    add("disk", time.disk_wait_s, fmt::format("  exposed, of {} s", three_digits(time.disk_s)));
  }
  add("other", time.other_s);
  return text;
}

nlohmann::ordered_json step_time_json(const StepTime& time) {
  return {{"step_s", time.step_s()},         {"products_s", time.products_s},
          {"attention_s", time.attention_s}, {"elementwise_s", time.elementwise_s},
          {"optimizer_s", time.optimizer_s}, {"local_s", time.local_s},
          {"network_s", time.network_s},     {"exposed_s", time.exposed_s},
          {"disk_s", time.disk_s},           {"disk_wait_s", time.disk_wait_s},
          {"other_s", time.other_s}};
}

std::string job_text(const JobSize& job) {
  return fmt::format("{} in {}: {}", format_count(std::llround(job.num_tokens), "token"),
                     format_count(job.num_steps, "step"), job.origin);
}

nlohmann::ordered_json job_json(const JobSize& job) {
  return {{"num_tokens", job.num_tokens},
          {"num_steps", job.num_steps},
          {"max_row_tokens", job.max_row_tokens},
          {"mean_row_tokens", job.mean_row_tokens},
          {"origin", job.origin}};
}

}  // namespace tessera
