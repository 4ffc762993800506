#include "tensor/tensor_view.h"

#include "tensor/shape_text.h"

namespace tessera {

std::string Shape::to_string() const { return shape_text(dims()); }

}  // namespace tessera
