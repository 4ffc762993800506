// Completes the last word of a command line for a shell, from the flag tables.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace tessera {

struct Offer {
  std::string word;     // kFiles or kFolders: the names of files or folders
  std::string meaning;  // a few words; "" for a value
  auto operator<=>(const Offer&) const = default;
};
inline constexpr const char* kFiles = "@files";
inline constexpr const char* kFolders = "@folders";

// `words`: those after the program's name, the last one as far as it has been typed. What follows --flag= is
// offered without the flag; a shell that makes a word of its own of the = may pass it so.
std::vector<Offer> completion_offers(const Commands& all, std::vector<std::string> words);

}  // namespace tessera
