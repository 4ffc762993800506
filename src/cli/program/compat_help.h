// Explains how names from other programs map to ours: `tessera help compat`, and docs/compat.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// All of them, or those with these names, in lines of at most `width` columns. Error(kUsage): a name that no
// table and no flag has, with what was probably meant.
std::string compat_help(const std::vector<std::string>& names, int64_t width);
// docs/compat.md.
std::string compat_reference();

}  // namespace tessera
