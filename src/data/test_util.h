// For the tests of this module.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace tessera {

// The Error that `body` throws; a test failure when it throws none. Checks that it is one line.
template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ExitCode::kDone, "");
}

}  // namespace tessera
