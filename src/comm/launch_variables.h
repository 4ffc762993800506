// Variables by which an agent of `tessera launch` and the command that it starts tell each other more than
// torchrun's do.
#pragma once

namespace tessera {

// Another text for every launch, the same in all starts of it: what a former start has left behind is known
// by it.
inline constexpr const char* kLaunchIdVariable = "TESSERA_LAUNCH_ID";

// A file of the first rank that has a byte once the start has got on: a training step was finished.
inline constexpr const char* kProgressFileVariable = "TESSERA_PROGRESS_FILE";

// Seconds from a signal until the agent kills its ranks.
inline constexpr const char* kTerminationGraceVariable = "TESSERA_TERMINATION_GRACE_S";

// Processors that the rank can keep busy: its part of a cgroup limit, at most those of its affinity mask.
// Says, too, that OMP_NUM_THREADS is the agent's doing, nobody's wish.
inline constexpr const char* kProcessorShareVariable = "TESSERA_PROCESSOR_SHARE";
// The command line of the launch that resumes its run, as a shell takes it; for the first rank to show.
inline constexpr const char* kResumeCommandVariable = "TESSERA_RESUME_COMMAND";

}  // namespace tessera
