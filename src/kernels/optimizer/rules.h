// The rules of kernels/optimizer/element_update.h. A new one is a file like adamw.h, named here and in
// formulas-inl.h.
#pragma once

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/lion.h"

#define TESSERA_UPDATE_RULES(DO) \
  DO(AdamWRule, "adamw")         \
  DO(LionRule, "lion")
