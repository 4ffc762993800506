// Where tests find the source tree and the reference data beside it. Functions of one small file, so that the
// compiled tests do not depend on where the tree lies.
#pragma once

#include <filesystem>

namespace tessera {

std::filesystem::path source_folder();
std::filesystem::path shared_folder();  // may be absent: tests that need it are skipped and say so

}  // namespace tessera
