// One result of a benchmark, as a line of a table and as a JSON object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "devices/measure/statistics.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"

namespace tessera {

// Another implementation's results for the same work, measured in the same rounds.
struct Comparison {
  std::string implementation;  // "onednn (amx_bf16)"
  Quartiles speed;
  Quartiles ratio;  // ours / theirs, paired
};

// The checks made before timing.
struct Verification {
  int64_t num_checked = 0;  // elements compared with the reference
  double worst_error = 0;   // largest |got - expected| / bound: at most 1
};

struct BenchLine {
  std::string benchmark;  // "gemm"
  std::string operation;  // "backward_weight"
  std::vector<std::pair<std::string, int64_t>> shape;
  std::string dtype;           // "BF16"
  std::string implementation;  // "amx (amx_bf16)"
  std::string unit;            // "TFLOPS", "GB/s"
  std::string peak_name;       // what `peak` is: "amx_bf16", "memory copy"
  double amount = 0;           // 10^12 operations or 10^9 bytes per call
  int64_t rounds = 0;
  Quartiles speed;
  Quartiles peak;
  Quartiles share;  // speed / peak, paired
  std::vector<Comparison> others;
  Verification verification;
};

// "amx (amx_bf16)", as BenchLine::implementation.
template <typename Kernels>
std::string implementation_text(const Implementation<Kernels>& implementation) {
  return fmt::format("{} ({})", implementation.name, isa_name(implementation.isa));
}

// Fills in the statistics from measure_in_turn() with the participants ours, peak, others...
void fill_statistics(const std::vector<std::vector<double>>& speeds, BenchLine* line);

// Lines of at most 80 columns.
std::string table_header(const std::string& unit, const std::string& compared_with);
std::string table_row(const BenchLine& line);

// One JSON object without line breaks. Keys: benchmark, operation, shape {..}, dtype, implementation, unit,
// speed, peak, share (each {q1, median, q3}), peak_name, rounds, amount_per_call, compare [{implementation,
// speed, ratio}], verified {elements, worst_error_in_bounds}, processor, threads, time (UTC).
std::string json_line(const BenchLine& line, int64_t num_threads);

nlohmann::ordered_json to_json(const Quartiles& quartiles);
// processor, threads, time (UTC).
nlohmann::ordered_json machine_json(int64_t num_threads);

}  // namespace tessera
