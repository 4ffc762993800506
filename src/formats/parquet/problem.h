// A problem with the bytes of a Parquet file, thrown where they are decoded; a caller that knows the file,
// the column and the place turns it into an Error.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace tessera::parquet {

class Problem : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Problem(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera::parquet
