// Where a run is, in one line.
#pragma once

#include <cstdint>
#include <string>

#include "report/run_progress.h"

namespace tessera {

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
std::string progress_line(const RunProgress& contents, const LineStyle& style);

// "step 45/600  loss 3.1416  trend -0.0213  lr 2.00e-04  12,345 tokens/s  MFU 0.43  ETA 01:23": always the
// same fields, in ASCII, for files and for programs; "--" for what is not known.
std::string plain_progress_line(const RunProgress& contents);

// Three digits: "6.74", "0.0213".
std::string format_tflops(double tflops);

}  // namespace tessera
