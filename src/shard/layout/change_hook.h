#pragma once

#include <functional>

#include "model/parameters.h"
#include "weights/model_folder.h"

namespace tessera {

// Called with the elements of owned() whose state is about to change.
using ChangeHook = std::function<void(ElementRange elements)>;

}  // namespace tessera
