#include "kernels/dropout/dropout.h"

#include "base/error.h"
#include "kernels/dropout/dropout_impl.h"

namespace tessera {

const DispatchTable<DropoutKernels>& dropout_table() {
  static const DispatchTable<DropoutKernels> table("dropout", concat(dropout_hwy(), dropout_ref()));
  return table;
}

void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update, ThreadPool& pool) {
  TESSERA_CHECK(x_TD.shape() == y_TD.shape() && x_TD.dtype() == y_TD.dtype() &&
                    std::ssize(which.tokens) == x_TD.dim(0) && which.probability < 1,
                "{} {} to {} {}, {} tokens, probability {}", dtype_name(x_TD.dtype()),
                x_TD.shape().to_string(), dtype_name(y_TD.dtype()), y_TD.shape().to_string(),
                which.tokens.size(), which.probability);
  dropout_table().chosen().dropout(x_TD, which, y_TD, update, pool);
}

}  // namespace tessera
