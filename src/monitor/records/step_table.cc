#include "monitor/records/step_table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace tessera {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// A file with more kinds of values was not written by a training run.
constexpr size_t kMaxColumns = 256;

}  // namespace

double StepTable::value(const std::string& column, int64_t row) const {
  const auto found = columns_.find(column);
  return found == columns_.end() || row < 0 || row >= num_rows() ? kNone
                                                                 : found->second[static_cast<size_t>(row)];
}

void StepTable::add(const nlohmann::ordered_json& line) {
  const auto step = line.at("step").get<int64_t>();
  const auto keep = static_cast<size_t>(std::ranges::lower_bound(steps_, step) - steps_.begin());
  if (keep < steps_.size()) {
    steps_.resize(keep);
    for (auto& [name, values] : columns_) values.resize(keep);
  }
  const auto set = [&](const std::string& name, double value) {
    auto found = columns_.find(name);
    if (found == columns_.end()) {
      if (names_.size() == kMaxColumns)
        fail(ExitCode::kBadData, "step {}: expected at most {} different fields", step, kMaxColumns);
      names_.push_back(name);
      found = columns_.emplace(name, std::vector<double>(steps_.size(), kNone)).first;
    }
    found->second.resize(steps_.size() + 1, kNone);
    found->second.back() = value;
  };
  const auto total = [&](const char* name, const char* of) {
    const auto found = line.find(of);
    const double before = steps_.empty() ? 0 : value(name, num_rows() - 1);
    if (found != line.end() && found->is_number()) set(name, before + found->get<double>());
  };
  total("elapsed_s", "step_time_s");
  total("total_tokens", "num_tokens");
  for (const auto& [name, value] : line.items()) {
    if (name == "step") continue;
    if (value.is_number()) set(name, value.get<double>());
    if (value.is_boolean()) set(name, value.get<bool>() ? 1 : 0);
  }
  steps_.push_back(step);
  for (auto& [name, values] : columns_) values.resize(steps_.size(), kNone);
}

std::vector<int64_t> StepTable::thinned(int64_t first, int64_t last, int64_t max_rows) const {
  const int64_t begin = std::ranges::lower_bound(steps_, first) - steps_.begin();
  const int64_t end = std::max(begin, std::ranges::upper_bound(steps_, last) - steps_.begin());
  std::vector<int64_t> rows;
  if (end - begin <= max_rows) {
    for (int64_t row = begin; row < end; ++row) rows.push_back(row);
    return rows;
  }
  // The first and the last row of all, and two of every column per piece.
  const int64_t num_pieces = std::max<int64_t>(1, (max_rows - 2) / (2 * std::ssize(columns_)));
  rows = {begin, end - 1};
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const int64_t from = begin + (end - begin) * piece / num_pieces;
    const int64_t to = begin + (end - begin) * (piece + 1) / num_pieces;
    for (const auto& [name, values] : columns_) {
      int64_t low = -1;
      int64_t high = -1;
      for (int64_t row = from; row < to; ++row) {
        const double value = values[static_cast<size_t>(row)];
        if (!std::isfinite(value)) continue;
        if (low < 0 || value < values[static_cast<size_t>(low)]) low = row;
        if (high < 0 || value > values[static_cast<size_t>(high)]) high = row;
      }
      if (low >= 0) rows.insert(rows.end(), {low, high});
    }
  }
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

nlohmann::ordered_json StepTable::json(int64_t first, int64_t last, int64_t max_rows) const {
  const std::vector<int64_t> rows = thinned(first, last, max_rows);
  const int64_t begin = std::ranges::lower_bound(steps_, first) - steps_.begin();
  const int64_t end = std::max(begin, std::ranges::upper_bound(steps_, last) - steps_.begin());
  nlohmann::ordered_json json = {
      {"num_steps", end - begin}, {"step", nlohmann::json::array()}, {"columns", nlohmann::json::object()}};
  for (const int64_t row : rows) json["step"].push_back(steps_[static_cast<size_t>(row)]);
  for (const std::string& name : names_) {
    nlohmann::ordered_json& column = json["columns"][name] = nlohmann::json::array();
    const std::vector<double>& values = columns_.at(name);
    // NaN becomes null when the text is written.
    for (const int64_t row : rows) column.push_back(values[static_cast<size_t>(row)]);
  }
  return json;
}

void StepTable::thin(int64_t max_rows) {
  const std::vector<int64_t> rows = thinned(first_step(), last_step(), max_rows);
  const auto keep = [&](auto& values) {
    for (size_t i = 0; i < rows.size(); ++i) values[i] = values[static_cast<size_t>(rows[i])];
    values.resize(rows.size());
  };
  keep(steps_);
  for (auto& [name, values] : columns_) keep(values);
}

}  // namespace tessera
