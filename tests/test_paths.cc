#include "test_paths.h"

namespace tessera {

std::filesystem::path source_folder() { return TESSERA_SOURCE_DIR; }

std::filesystem::path shared_folder() { return source_folder().parent_path() / "shared"; }

}  // namespace tessera
