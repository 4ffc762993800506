// Formats what `tessera status` reports about a job.
#pragma once

#include <string>

#include "cluster/jobs/diagnosis.h"

namespace tessera {

// A few lines: the state and what the cluster says of it, the progress, the advice.
std::string job_text(const JobObjects& job, const Diagnosis& found);
// Returns the report as a JSON object with indent 2 and a trailing newline.
std::string job_json(const JobObjects& job, const Diagnosis& found);

}  // namespace tessera
