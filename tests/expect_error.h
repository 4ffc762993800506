// For tests: checks of the error for a refused input.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace tessera {

// `body` must throw an Error with this exit code whose text is one line with all of the fragments.
template <typename Body>
void expect_error(ExitCode code, const std::vector<std::string>& fragments, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "expected an error with " << testing::PrintToString(fragments);
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    for (const std::string& fragment : fragments) EXPECT_THAT(message, testing::HasSubstr(fragment));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 2000) << message;
  }
}

// The Error that `body` throws; a test failure if it throws none or its text is not one line.
template <typename Body>
Error error_of(Body&& body) {
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
