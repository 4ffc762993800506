// For tests: a process of their own for what changes limits or mounts, or may not end.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

namespace tessera {

// Runs `body` in a process of its own and returns its result; 1 if it throws or has failures, whose text is
// on stderr; 128 plus the signal that ended it.
inline int run_in_child(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      code = body();
    } catch (const std::exception& exception) {
      std::fprintf(stderr, "in the child: %s\n", exception.what());
    }
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace tessera
