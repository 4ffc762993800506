// Settings that must be the same on all ranks of a job.
#pragma once

#include <map>
#include <string>

#include "comm/ranks/world.h"
#include "comm/store/store_client.h"

namespace tessera {

// The first difference in alphabetical order, "" if there is none:
// "setting 'lr' differs: '1e-4' for rank 0 on host a, '2e-4' for rank 3 on host b (and 2 more settings)"
std::string describe_difference(const std::map<std::string, std::string>& mine,
                                const std::map<std::string, std::string>& theirs, const std::string& me,
                                const std::string& them);

// Does the same for all ranks of a job through its store, under keys that begin with `prefix`: rank 0
// compares and tells the others, so that all report the same. Collective.
std::string find_difference(StoreClient& store, const World& world, const std::string& prefix,
                            const std::map<std::string, std::string>& settings);

}  // namespace tessera
