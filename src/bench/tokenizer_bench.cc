#include "bench/tokenizer_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/bench_line.h"
#include "tokenizer/tokenizer.h"

namespace tessera {
namespace {

constexpr double kMiB = 1 << 20;

// Letters by decreasing frequency in English; words are drawn from them.
constexpr std::string_view kLetters = "etaoinshrdlcumwfgypbvkjxqz";

std::vector<std::string> make_vocabulary(const CounterRng& rng) {
  constexpr int64_t kNumWords = 20000;
  constexpr double kMeanExtraLetters = 7;
  std::vector<std::string> words;
  uint64_t at = 0;
  for (int64_t i = 0; i < kNumWords; ++i) {
    // Frequent words are short.
    const double longest = 2 + kMeanExtraLetters * std::min(1.0, std::log(1.0 + static_cast<double>(i)) / 6);
    const auto length = 1 + static_cast<int64_t>(rng.uniform(at++) * static_cast<float>(longest));
    std::string word;
    for (int64_t k = 0; k < length; ++k) {
      const float u = rng.uniform(at++);
      word += kLetters[static_cast<size_t>(u * u * static_cast<float>(kLetters.size()))];
    }
    words.push_back(word);
  }
  return words;
}

void check_same_ids(const std::string& name, const std::vector<int32_t>& got,
                    const std::vector<int32_t>& expected) {
  const size_t shared = std::min(got.size(), expected.size());
  const size_t at = static_cast<size_t>(
      std::mismatch(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(shared), expected.begin()).first -
      got.begin());
  if (at == shared && got.size() == expected.size()) return;
  fail(ExitCode::kInternal,
       "tokenizer {}: token {} is {}, expected {} ({}, expected {}): the fast path is wrong", name, at,
       at < got.size() ? std::to_string(got[at]) : "missing",
       at < expected.size() ? std::to_string(expected[at]) : "none", count_of(std::ssize(got), "token"),
       expected.size());
}

}  // namespace

std::string generate_text(int64_t size_bytes, uint64_t seed) {
  const CounterRng rng(seed, 0);
  const std::vector<std::string> words = make_vocabulary(rng);
  const CounterRng draw(seed, 1);
  std::string text;
  uint64_t at = 0;
  bool sentence_begins = true;
  while (static_cast<int64_t>(text.size()) < size_bytes) {
    // Zipf's law: rank = n^u has a density of 1 / rank.
    const double rank = std::pow(static_cast<double>(words.size()), draw.uniform(at++));
    std::string word = words[std::min(words.size() - 1, static_cast<size_t>(rank) - 1)];
    if (sentence_begins) word[0] = static_cast<char>(word[0] - 'a' + 'A');
    const float u = draw.uniform(at++);
    sentence_begins = false;
    if (u < 0.01f) word = fmt::format("{}", static_cast<int64_t>(u * 1e6f));
    if (u > 0.92f) {
      sentence_begins = u > 0.95f;
      word += !sentence_begins ? "," : u > 0.995f ? ".\n\n" : ".";
    }
    text += word;
    if (!text.ends_with('\n')) text += ' ';
  }
  return text;
}

std::vector<TokenizerLine> run_tokenizer_bench(const std::string& tokenizer_json,
                                               const std::string& tokenizer_name, const std::string& text,
                                               const std::string& text_name, const MeasureOptions& options) {
  const Tokenizer tokenizer = Tokenizer::parse(tokenizer_json, tokenizer_name);
  const Tokenizer reference = Tokenizer::parse(tokenizer_json, tokenizer_name, {.reference = true});
  const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
  check_same_ids(tokenizer_name, ids, reference.encode(text, /*add_special_tokens=*/false));
  if (tokenizer.decode(ids) != reference.decode(ids)) {
    fail(ExitCode::kInternal, "tokenizer {}: the text of {} differs from that of the reference path",
         tokenizer_name, count_of(std::ssize(ids), "token"));
  }

  const double mib = static_cast<double>(text.size()) / kMiB;
  std::vector<int32_t> buffer;
  const auto encode = [&](const Tokenizer& with) {
    buffer.clear();
    with.encode(text, /*add_special_tokens=*/false, &buffer);
  };
  const Participant encode_again = [&] {
    return speed_of([&] { encode(tokenizer); }, mib, options.turn_seconds);
  };
  const Participant encode_first_time = [&] {
    const Tokenizer fresh = Tokenizer::parse(tokenizer_json, tokenizer_name);
    return mib / seconds_of([&] { encode(fresh); });
  };
  const Participant encode_reference = [&] { return mib / seconds_of([&] { encode(reference); }); };
  const Participant decode = [&] {
    return speed_of([&] { tokenizer.decode(ids); }, mib, options.turn_seconds);
  };
  const Participant load = [&] {
    const double json_mib = static_cast<double>(tokenizer_json.size()) / kMiB;
    return speed_of([&] { Tokenizer::parse(tokenizer_json, tokenizer_name); }, json_mib,
                    options.turn_seconds);
  };

  std::vector<TokenizerLine> lines;
  const auto measure = [&](const char* operation, const Participant& ours, const Participant* other) {
    std::vector<Participant> participants = {ours};
    if (other != nullptr) participants.push_back(*other);
    const auto speeds = measure_in_turn(participants, options);
    TokenizerLine line = {operation,
                          tokenizer_name,
                          text_name,
                          static_cast<int64_t>(text.size()),
                          static_cast<int64_t>(ids.size()),
                          static_cast<int64_t>(speeds[0].size()),
                          quartiles(speeds[0]),
                          {}};
    if (other != nullptr) line.ratio_to_reference = quartiles(paired_ratios(speeds[0], speeds[1]));
    lines.push_back(line);
  };
  measure("encode", encode_again, &encode_reference);
  measure("encode_first_time", encode_first_time, &encode_reference);
  measure("decode", decode, nullptr);
  measure("load", load, nullptr);
  return lines;
}

std::string tokenizer_table_header() {
  return fmt::format("{:<18} {:<14} {:<20} {:>6} {:>9} {:>7}\n", "operation", "tokenizer", "text", "MiB/s",
                     "q1-q3", "plain");
}

std::string tokenizer_table_row(const TokenizerLine& line) {
  const Quartiles& speed = line.mib_per_second;
  return fmt::format("{:<18} {:<14.14} {:<20.20} {:>6.1f} {:>9} {:>7}\n", line.operation, line.tokenizer,
                     line.text, speed.median, fmt::format("{:.0f}-{:.0f}", speed.q1, speed.q3),
                     line.ratio_to_reference ? fmt::format("{:.1f}x", line.ratio_to_reference->median) : "");
}

std::string tokenizer_json_line(const TokenizerLine& line) {
  nlohmann::ordered_json json = {
      {"benchmark", "tokenizer"},      {"operation", line.operation},
      {"tokenizer", line.tokenizer},   {"text", line.text},
      {"text_bytes", line.text_bytes}, {"num_tokens", line.num_tokens},
      {"rounds", line.rounds},         {"mib_per_second", to_json(line.mib_per_second)},
      {"ratio_to_reference", nullptr}};
  if (line.ratio_to_reference) json["ratio_to_reference"] = to_json(*line.ratio_to_reference);
  json.update(machine_json(/*num_threads=*/1));
  return json.dump() + "\n";
}

}  // namespace tessera
