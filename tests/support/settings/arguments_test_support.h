// For tests: the flags of a training run, set one by one.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "settings/run_settings.h"

namespace tessera {

class ArgumentsTest : public testing::Test {
 protected:
  ArgumentsTest() { declare_training_flags(&table_, &spec_); }

  void give(const std::string& name, const std::string& value) {
    const Flag* flag = table_.find(name);
    ASSERT_NE(flag, nullptr) << name;
    table_.set(*flag, {value}, "command line");
  }

  // The message that refuses a single value on the command line.
  std::string refusal(const std::string& name, const std::string& value) {
    try {
      give(name, value);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "--" << name << " " << value << " was accepted";
    return "";
  }

  void resolve(int64_t world_size = 1) { spec_ = read_run_spec(table_, spec_, world_size); }

  std::string contradiction(int64_t world_size = 1) {
    try {
      resolve(world_size);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "was accepted";
    return "";
  }

  RunSettings spec_;
  FlagTable table_;
};

}  // namespace tessera
