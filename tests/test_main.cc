// main() for every test program.
#include <gmock/gmock.h>

#include "platform/open_files.h"

int main(int argc, char** argv) {
  // The usual limit of 1,024 is too low for many ranks in one process.
  tessera::raise_open_file_limit();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
