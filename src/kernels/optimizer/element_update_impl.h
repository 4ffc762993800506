// The implementations behind element_update.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/dispatch.h"
#include "kernels/optimizer/element_update.h"
#include "kernels/optimizer/rules.h"

namespace tessera {

template <class Rule>
struct UpdateKernels {
  decltype(&update_elements<Rule>) update;
};

template <class Rule>
std::vector<Implementation<UpdateKernels<Rule>>> update_ref();
template <class Rule>
std::vector<Implementation<UpdateKernels<Rule>>> update_hwy();
template <class Rule>
const DispatchTable<UpdateKernels<Rule>>& update_table();

}  // namespace tessera
