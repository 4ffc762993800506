// The rules of kernels/optimizer/element_update.h. A new one is a file like adamw.h and two lines here: its
// file, and its name. formulas-inl.h includes this list once more, with TESSERA_UPDATE_FORMULAS, for the
// formulas in the same files; hence no #pragma once.
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/lion.h"

#if !defined(TESSERA_UPDATE_RULES)
#define TESSERA_UPDATE_RULES(DO) \
  DO(AdamWRule, "adamw")         \
  DO(LionRule, "lion")
#endif
