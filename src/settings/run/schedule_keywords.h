// lr_scheduler_kwargs: the settings of a schedule as Transformers' and DeepSpeed's keywords.
#pragma once

#include <string>

#include "optim/schedule_form.h"

namespace tessera {

// The schedule of this type with the keywords of `text`, a JSON object; "" = none. A null counts as absent,
// like None in Python. Error(kBadConfig) for an unknown, missing or wrong keyword.
ScheduleForm read_schedule_keywords(ScheduleType type, const std::string& text);

}  // namespace tessera
