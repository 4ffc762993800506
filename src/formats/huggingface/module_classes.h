// The classes of Transformers' modules in a model of each family, by which FSDP is told what to wrap.
#pragma once

#include <string_view>
#include <vector>

#include "formats/huggingface/model_config.h"

namespace tessera {

struct ModuleClasses {
  ModelFamily family;
  std::string_view layer;                // _no_split_modules of the family's PreTrainedModel
  std::vector<std::string_view> others;  // the other classes of modules that hold parameters
};

const ModuleClasses& module_classes(ModelFamily family);

}  // namespace tessera
