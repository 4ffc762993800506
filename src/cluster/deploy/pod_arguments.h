// The command line of `tessera train` in a pod, from the one that `tessera deploy kubernetes` was given.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"
#include "forecast/instances/search.h"
#include "settings/run_settings.h"

namespace tessera {

// Error(kUsage) for settings that name files which the pods do not have: everything has to be a name on the
// Hub or a path in the pods, on the volume at /data unless they have others.
void check_pod_paths(const std::vector<const Flag*>& given, bool has_other_volumes = false);
// Like check_pod_paths(), for the folders of a DeepSpeed file's monitors, once the file has been read.
void check_monitors(const ReportingSpec& reporting);

// Error(kUsage) if --fabric needs what the image or the pods lack.
void check_fabric(const NetworkSpec& network, const std::string& image, bool image_is_given, int64_t num_efa);

// Error(kUsage) for --fit, whose choice the pods would make after the plan.
void check_fit(const PlacementSpec& placement);

// Warns if pods that replace others would not go on from the newest checkpoint.
void check_resume(const ResumeSpec& resume);

// Error(kBadConfig) if state or weights are to be on a disk that the pods do not have: a folder on the volume
// has to be named, which works, at the speed of the network.
void check_offload(const PlacementSpec& placement);

// "--flag=value" for each flag given, also in a configuration file. A DeepSpeed file becomes its text.
std::vector<std::string> given_words(const std::vector<const Flag*>& given);

// The same, then what the layout decides and what a
// pod needs: output folder, resuming, metrics.
std::vector<std::string> pod_arguments(const std::vector<const Flag*>& given, const RunLayout& layout,
                                       int64_t step_rows, const std::string& job);

}  // namespace tessera
