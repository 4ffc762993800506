#include "cli/terminal/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tessera {
namespace {

using testing::HasSubstr;

// Uniform in [0, 1).
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : engine_(seed) {}
  double operator()() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

std::string without_colours(const std::string& line) {
  std::string plain;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      i = line.find('m', i);
    } else {
      plain += line[i];
    }
  }
  return plain;
}

int64_t columns(const std::string& line) {
  return std::ranges::count_if(without_colours(line), [](char c) { return (c & 0xC0) != 0x80; });
}

RunProgress halfway() {
  return {.step = 300,
          .max_steps = 600,
          .loss = 2.5,
          .trend = Trend::kFalling,
          .loss_change = -0.0213,
          .learning_rate = 2e-4,
          .tokens_per_second = 12345,
          .tflops = 2.868,
          .mfu = 0.4256,
          .eta_s = 83};
}

// A run of weeks with the longest values.
RunProgress largest() {
  RunProgress contents = halfway();
  contents.step = 1'000'000;
  contents.max_steps = 1'000'000;
  contents.loss = 12.5;
  contents.tokens_per_second = 12.3e6;
  contents.eta_s = 123 * 86400.0 + 4 * 3600;
  return contents;
}

TEST(ProgressLine, HasEverythingInEightyColumns) {
  EXPECT_EQ(progress_line(halfway(), {79, true, false}),
            "300/600  loss 2.5000\u2193  lr 2.00e-04  12,345 tokens/s  MFU 0.43  ETA 01:23");
  EXPECT_EQ(progress_line(largest(), {79, false, false}),
            "1000000/1000000 loss 12.5000v lr 2.00e-04 12.30M tokens/s MFU 0.43 ETA 123d 04h");
  EXPECT_EQ(columns(progress_line(largest(), {79, false, false})), 79);
}

TEST(ProgressLine, ABarFillsTheRestOfItsEightyColumns) {
  RunProgress small = halfway();
  small.step = 5;
  small.max_steps = 10;
  small.tokens_per_second = 999;
  const std::string line = "5/10  loss 2.5000v  lr 2.00e-04  999 tokens/s  MFU 0.43  ETA 01:23";
  for (const int64_t width : {80, 120, 500})
    EXPECT_EQ(progress_line(small, {width, false, false}), "[#####......] " + line) << width;
  EXPECT_EQ(progress_line(small, {78, false, false}), "[####.....] " + line);
  EXPECT_EQ(progress_line(small, {74, false, false}), "[##...] " + line);
  EXPECT_EQ(progress_line(small, {73, false, false}), line);
  small.max_steps = 0;
  EXPECT_THAT(progress_line(small, {80, false, false}), testing::StartsWith("5  loss")) << "no end is known";
}

TEST(ProgressLine, DropsTheLeastImportantFirst) {
  EXPECT_EQ(progress_line(halfway(), {71, false, false}),
            "300/600 loss 2.5000v lr 2.00e-04 12,345 tokens/s MFU 0.43 ETA 01:23");
  EXPECT_EQ(progress_line(halfway(), {60, false, false}),
            "300/600 loss 2.5000v lr 2.00e-04 12,345 tokens/s ETA 01:23");
  EXPECT_EQ(progress_line(halfway(), {50, false, false}),
            "300/600  loss 2.5000v  12,345 tokens/s  ETA 01:23");
  EXPECT_EQ(progress_line(halfway(), {40, false, false}), "300/600  loss 2.5000v  ETA 01:23");
  EXPECT_EQ(progress_line(largest(), {40, false, false}), "1000000 loss 12.5000v ETA 123d 04h");
  EXPECT_EQ(progress_line(largest(), {25, false, false}), "1000000  loss 12.5000v");
  EXPECT_EQ(progress_line(largest(), {5, false, false}), "10000");
}

TEST(ProgressLine, FitsItsWidthWhateverTheNumbers) {
  Uniform uniform(7);
  const auto log_uniform = [&uniform](double high) { return std::exp(uniform() * std::log(high)); };
  for (int i = 0; i < 2000; ++i) {
    RunProgress contents = halfway();
    contents.max_steps = static_cast<int64_t>(log_uniform(1e9));
    contents.step = static_cast<int64_t>(uniform() * static_cast<double>(contents.max_steps));
    contents.loss = log_uniform(1e6);
    contents.trend = static_cast<Trend>(i % 4);
    contents.tokens_per_second = log_uniform(1e9);
    contents.tflops = log_uniform(1e6);
    if (i % 3 == 0) contents.mfu.reset();
    contents.eta_s = i % 5 == 0 ? std::nullopt : std::optional(log_uniform(1e12));
    if (i % 7 == 0) contents.activity = "eval 40%";
    const auto width = static_cast<int64_t>(uniform() * 120);
    for (const bool utf8 : {false, true}) {
      for (const bool colours : {false, true}) {
        const std::string line = progress_line(contents, {width, utf8, colours});
        EXPECT_LE(columns(line), std::min<int64_t>(width, 80)) << line;
        EXPECT_EQ(colours || line.find('\x1b') == std::string::npos, true);
      }
    }
  }
}

TEST(ProgressLine, ColoursChangeNothingElse) {
  const std::string plain = progress_line(halfway(), {79, true, false});
  const std::string coloured = progress_line(halfway(), {79, true, true});
  EXPECT_THAT(coloured, HasSubstr("\x1b[32m\u2193\x1b[0m"));
  EXPECT_EQ(without_colours(coloured), plain);
}

TEST(ProgressLine, TellsWhatIsNotKnown) {
  RunProgress begin = halfway();
  begin.trend = Trend::kUnknown;
  begin.mfu.reset();
  begin.eta_s.reset();
  EXPECT_EQ(progress_line(begin, {74, true, false}),
            "300/600  loss 2.5000  lr 2.00e-04  12,345 tokens/s  2.87 TFLOPS  ETA --:--");
  begin.activity = "eval 40%";
  begin.loss = std::nan("");
  EXPECT_THAT(progress_line(begin, {80, true, false}), testing::StartsWith("300/600 eval 40% loss nan"));
}

TEST(PlainProgressLine, HasTheSameFieldsWhateverIsKnown) {
  EXPECT_EQ(plain_progress_line(halfway()),
            "step 300/600  loss 2.5000  trend -0.0213  lr 2.00e-04  12,345 tokens/s  MFU 0.43  ETA 01:23");
  RunProgress begin = halfway();
  begin.loss_change.reset();
  begin.mfu.reset();
  begin.eta_s.reset();
  EXPECT_EQ(plain_progress_line(begin),
            "step 300/600  loss 2.5000  trend --  lr 2.00e-04  12,345 tokens/s  2.87 TFLOPS  ETA --:--");
}

TEST(FormatEta, CountsDaysAfterAHundredHours) {
  EXPECT_EQ(format_eta(std::nullopt), "--:--");
  EXPECT_EQ(format_eta(59.6), "01:00");
  EXPECT_EQ(format_eta(99 * 3600.0), "99:00:00");
  EXPECT_EQ(format_eta(100 * 3600.0), "4d 04h");
  EXPECT_EQ(format_eta(1e300), "--:--");
  EXPECT_EQ(format_eta(std::nan("")), "--:--");
}

}  // namespace
}  // namespace tessera
