// The columns and fields of messages that settings name, and whether any row has them: a misspelled name
// would otherwise read as empty in every row.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/value.h"
#include "data/chat/example.h"

namespace tessera {

class NamedColumns {
 public:
  explicit NamedColumns(const RowFormat& format);

  // Looks at the rows of a file until all names are found. A text file has the column "text".
  void look_into(const std::filesystem::path& file);
  // Also counts columns found in other sources with the same settings.
  void merge(const NamedColumns& other);
  // Error(kBadData): the first row, the first name that no row has, and what was found.
  void expect_all() const;

 private:
  struct Name {
    std::string field;   // what the shape of the rows calls it
    std::string column;  // or the field of a message
    bool is_in_messages = false;
    bool is_found = false;
  };
  struct Place {
    std::string where;
    std::string names;  // of what is there
  };

  bool are_all_found() const;
  void look_at(const Value& row, const std::string& where);

  std::string messages_column_;
  std::vector<Name> names_;
  std::string remedy_ = "name one of these, or leave it out";
  Place row_;      // the first one; empty if there is none
  Place message_;  // the first one
};

}  // namespace tessera
