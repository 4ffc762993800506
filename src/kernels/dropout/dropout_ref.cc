#include "kernels/activation_type.h"
#include "kernels/dropout/dropout_impl.h"

namespace tessera {
namespace {

void dropout_rows_ref(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update,
                      ThreadPool& /*pool*/) {
  const int64_t D = x_TD.dim(1);
  const uint32_t threshold = which.threshold();
  const float scale = which.scale();
  with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < x_TD.dim(0); ++t) {
      for (int64_t d = 0; d < D; ++d) {
        const uint32_t number = dropout_number(which.site, which.tokens[static_cast<size_t>(t)], d);
        const float kept = number < threshold ? 0 : scale * to_float(x_TD.as<A>()[t * D + d]);
        A& y = y_TD.as<A>()[t * D + d];
        y = from_float<A>(update == Update::kAdd ? to_float(y) + kept : kept);
      }
    }
  });
}

}  // namespace

std::vector<Implementation<DropoutKernels>> dropout_ref() {
  return {{"ref", Isa::kRef, {.dropout = dropout_rows_ref}}};
}

}  // namespace tessera
