// Where a run is, in one line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/text.h"
#include "cli/terminal/loss_trend.h"

namespace tessera {

struct ProgressContents {
  int64_t step = 0;
  int64_t max_steps = 0;  // 0: not known
  double loss = 0;
  Trend trend = Trend::kUnknown;
  std::optional<double> loss_change = {};  // LossTrend::change()
  double learning_rate = 0;
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu = {};    // nullopt: no peak was measured
  std::optional<double> eta_s = {};  // nullopt: not known yet
  std::string activity = {};         // "eval 40%", "last step 10:00 ago"; "" = steps
};

struct LineStyle {
  int64_t width = 80;  // columns of the terminal
  bool utf8 = false;
  bool colours = false;
};

// The style of standard error, with a column left free: a character in the last one may begin a new line.
LineStyle terminal_style();

// "[##...] 45/600  loss 3.1416↓  lr 2.00e-04  12,345 tokens/s  MFU 0.43  ETA 01:23", at most 80 columns and
// at most style.width; TFLOPS stand in for an MFU that is not known. If space runs out, the bar is dropped
// first, then blanks, then MFU, learning rate, tokens/s, the number of steps, ETA.
std::string progress_line(const ProgressContents& contents, const LineStyle& style);

// "step 45/600  loss 3.1416  trend -0.0213  lr 2.00e-04  12,345 tokens/s  MFU 0.43  ETA 01:23": always the
// same fields, in ASCII, for files and for programs; "--" for what is not known.
std::string plain_progress_line(const ProgressContents& contents);

// Three digits: "6.74", "0.0213".
std::string format_tflops(double tflops);

}  // namespace tessera
