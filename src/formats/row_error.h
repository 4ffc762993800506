// An error of one row.
#pragma once

#include "base/error.h"

namespace tessera {

// One row is bad; the reader that threw this continues with the next row if asked to. Any other Error means
// that the file cannot be read further.
class RowError : public Error {
 public:
  using Error::Error;
};

}  // namespace tessera
