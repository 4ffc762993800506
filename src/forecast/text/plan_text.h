// Numbers and lines that the reports of plans share.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "forecast/text/job_size.h"
#include "forecast/time/step_time.h"

namespace tessera {

// "1.23M", "123k", "12,345", "123", "12.3", "1.23", "0.123".
std::string three_digits(double value);
// Indents every line by two spaces.
std::string indented(const std::string& lines);
inline constexpr size_t kTextColumns = 80;
// `head` followed by the words, on lines of at most kTextColumns as far as they fit; later lines are indented
// by `indent` spaces.
std::string wrapped(std::string head, std::span<const std::string> words, size_t indent);

// The parts of a step's time, one per line.
std::string step_time_text(const StepTime& time);
nlohmann::ordered_json step_time_json(const StepTime& time);
// "1,000,000 tokens in 62 steps: 3 epochs of 330 rows".
std::string job_text(const JobSize& job);
nlohmann::ordered_json job_json(const JobSize& job);

}  // namespace tessera
