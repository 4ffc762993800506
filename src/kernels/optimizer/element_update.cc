#include "kernels/optimizer/element_update.h"

#include "kernels/optimizer/element_update_impl.h"

namespace tessera {

template <class Rule>
void update_elements(const OptimizerBlock& block, MomentForm form, const typename Rule::Scalars& scalars,
                     ThreadPool& pool) {
  update_table<Rule>().chosen().update(block, form, scalars, pool);
}

#define TESSERA_DEFINE_TABLE(Rule, name)                                                                   \
  template <>                                                                                              \
  const DispatchTable<UpdateKernels<Rule>>& update_table<Rule>() {                                         \
    static const DispatchTable<UpdateKernels<Rule>> table(name,                                            \
                                                          concat(update_hwy<Rule>(), update_ref<Rule>())); \
    return table;                                                                                          \
  }                                                                                                        \
  template void update_elements<Rule>(const OptimizerBlock&, MomentForm, const Rule::Scalars&, ThreadPool&);
TESSERA_UPDATE_RULES(TESSERA_DEFINE_TABLE)

}  // namespace tessera
