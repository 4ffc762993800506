#include "bench/bench_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera {
namespace {

// "2048x128256x4096".
std::string shape_text(const BenchLine& line) {
  std::vector<int64_t> sizes;
  for (const auto& [name, size] : line.shape) sizes.push_back(size);
  return fmt::format("{}", fmt::join(sizes, "x"));
}

// Three significant digits, never an exponent: "0.213", "6.81", "79.2", "1240".
std::string three_digits(double value) {
  const int decimals = value < 1 ? 3 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return fmt::format("{:.{}f}", value, decimals);
}

// Two decimals, or three digits where other work disturbed the measurement of the peak: "0.55", "21.3".
std::string share_text(double share) {
  return share < 10 ? fmt::format("{:.2f}", share) : three_digits(share);
}

constexpr const char* kRow = "{:<22} {:>16} {:>7} {:>7} {:>5} {:>9} {:>7}\n";

}  // namespace

nlohmann::ordered_json to_json(const Quartiles& quartiles) {
  return {{"q1", quartiles.q1}, {"median", quartiles.median}, {"q3", quartiles.q3}};
}

nlohmann::ordered_json machine_json(int64_t num_threads) {
  return {{"processor", cpu_features().brand},
          {"threads", num_threads},
          {"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))}};
}

void fill_statistics(const std::vector<std::vector<double>>& speeds, BenchLine* line) {
  TESSERA_CHECK(speeds.size() == 2 + line->others.size(), "{} participants, {} comparisons", speeds.size(),
                line->others.size());
  const std::vector<double>& ours = speeds[0];
  line->rounds = static_cast<int64_t>(ours.size());
  line->speed = quartiles(ours);
  line->peak = quartiles(speeds[1]);
  line->share = quartiles(paired_ratios(ours, speeds[1]));
  for (size_t i = 0; i < line->others.size(); ++i) {
    line->others[i].speed = quartiles(speeds[2 + i]);
    line->others[i].ratio = quartiles(paired_ratios(ours, speeds[2 + i]));
  }
}

std::string table_header(const std::string& unit, const std::string& compared_with) {
  return fmt::format(kRow, "operation", "shape", unit, "peak", "share", "q1-q3", compared_with);
}

std::string table_row(const BenchLine& line) {
  return fmt::format(kRow, line.operation, shape_text(line), three_digits(line.speed.median),
                     three_digits(line.peak.median), share_text(line.share.median),
                     share_text(line.share.q1) + "-" + share_text(line.share.q3),
                     line.others.empty() ? "" : three_digits(line.others[0].ratio.median) + "x");
}

std::string json_line(const BenchLine& line, int64_t num_threads) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::object();
  for (const auto& [name, size] : line.shape) shape[name] = size;
  nlohmann::ordered_json others = nlohmann::ordered_json::array();
  for (const Comparison& other : line.others) {
    others.push_back({{"implementation", other.implementation},
                      {"speed", to_json(other.speed)},
                      {"ratio", to_json(other.ratio)}});
  }
  nlohmann::ordered_json json = {{"benchmark", line.benchmark},
                                 {"operation", line.operation},
                                 {"shape", shape},
                                 {"dtype", line.dtype},
                                 {"implementation", line.implementation},
                                 {"unit", line.unit},
                                 {"speed", to_json(line.speed)},
                                 {"peak", to_json(line.peak)},
                                 {"share", to_json(line.share)},
                                 {"peak_name", line.peak_name},
                                 {"rounds", line.rounds},
                                 {"amount_per_call", line.amount},
                                 {"compare", others},
                                 {"verified",
                                  {{"elements", line.verification.num_checked},
                                   {"worst_error_in_bounds", line.verification.worst_error}}}};
  json.update(machine_json(num_threads));
  return json.dump() + "\n";
}

}  // namespace tessera
