// Environment variables that pass more between the agent of `tessera launch` and the command it starts than
// torchrun's do.
#pragma once

namespace tessera {

// Unique per launch and identical across its restarts: identifies resources left over from an earlier start
// of the same launch.
inline constexpr const char* kLaunchIdVariable = "TESSERA_LAUNCH_ID";

// A file that the first rank writes a byte to once the start has made progress, that is, finished a training
// step.
inline constexpr const char* kProgressFileVariable = "TESSERA_PROGRESS_FILE";

// Port of the agent's store, where MASTER_PORT is one that the program may listen on.
inline constexpr const char* kStorePortVariable = "TESSERA_STORE_PORT";

// Seconds between a signal and the agent killing its ranks.
inline constexpr const char* kTerminationGraceVariable = "TESSERA_TERMINATION_GRACE_S";

// Processors the rank can keep busy: its share of a cgroup limit, at most those of its affinity mask. Its
// presence also says that OMP_NUM_THREADS was set by the agent, not by the user.
inline constexpr const char* kProcessorShareVariable = "TESSERA_PROCESSOR_SHARE";
// The shell command line that resumes the run of this launch; the first rank shows it.
inline constexpr const char* kResumeCommandVariable = "TESSERA_RESUME_COMMAND";

// The Unix socket of a program that started this one and follows its run (report/sinks/control_channel.h). It
// says in kResumeCommandVariable how it resumes.
inline constexpr const char* kControlVariable = "TESSERA_CONTROL";

}  // namespace tessera
