#include "tensor/tensor_view.h"

#include "tensor/shape_text.h"

#include "tensor/device.h"

namespace tessera {

std::string Shape::to_string() const { return shape_text(dims()); }

void refuse_host_access(const Device& device, const Shape& shape) {
  TESSERA_CHECK(false, "the host reads or writes {} in the memory of device {}", shape.to_string(),
                device.name());
}

}  // namespace tessera
