// The files of a source of rows.
#pragma once

#include <string>
#include <vector>

#include "formats/input_files.h"

namespace tessera {

// Like find_input_files(), but takes only the files of the first split in `splits` that a folder has, found
// as datasets.load_dataset(folder) finds them: by README.md, or by the names of files and folders (train*,
// test*, validation*, data/train-00000-of-00001.parquet, ...). `left_out` lists what is skipped.
// Error(kBadConfig): a folder has other splits.
InputFiles find_source_files(const std::vector<std::string>& patterns,
                             const std::vector<std::string>& splits);

}  // namespace tessera
