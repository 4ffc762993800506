// For tests: one check of several.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cluster/check.h"

namespace tessera {

// The first with this name; a test failure if there is none.
inline Check check_named(const std::vector<Check>& checks, const std::string& name) {
  for (const Check& check : checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

}  // namespace tessera
