// Three kinds of errors (see CONTRIBUTING.md): mistakes of the user and failures of the environment are
// exceptions of type Error that say in one line where it happened, what was expected, what was found and what
// to do; a bug is a failed TESSERA_CHECK.
#pragma once

#include <fmt/format.h>

#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// Process exit codes, after sysexits.h, so that a restart policy can tell causes apart.
enum class ExitCode : int {
  kDone = 0,
  kUsage = 64,      // bad command line
  kBadData = 65,    // a file or a value in it is invalid
  kNoInput = 66,    // an input does not exist or cannot be opened
  kInternal = 70,   // a bug: a failed check
  kIoError = 74,    // disk or network failed while in use
  kTryAgain = 75,   // a peer failed or timed out
  kBadConfig = 78,  // settings that contradict each other, the model or the machine
  kNumerics = 79,   // loss or gradient is not finite
};

// what() is one line without a trailing newline, ready to be printed after "error: ".
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// fail(ExitCode::kBadData, "{}: tensor '{}': expected shape {}, found {}", file, name, want, got)
template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Like fail(), with ": <text of errno_value>" appended.
[[noreturn]] void fail_errno(ExitCode code, int errno_value, const std::string& message);

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}  // namespace internal

// True for the user's mistakes, whichever process of a job finds them: kUsage, kBadData, kNoInput,
// kBadConfig.
bool is_users_mistake(ExitCode code);

// Reports several mistakes found together in one line: a single one as is, several numbered.
[[noreturn]] void fail_all(ExitCode code, const std::vector<std::string>& messages);

// The exit codes of the program, in words.
struct ExitCodeMeaning {
  int code;
  const char* meaning;
};
std::span<const ExitCodeMeaning> exit_code_meanings();

}  // namespace tessera

// Checks an internal invariant: throws Error(kInternal) with the location, the condition and the given
// values.
#define TESSERA_CHECK(condition, ...)                                                                   \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]] {                                                                    \
      ::tessera::internal::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                                   \
  } while (false)
