// The content of one file into the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hub/cache.h"
#include "hub/hub_client.h"

namespace tessera {

struct DownloadEvents {
  // Bytes that are in the file now; `from_network` is false for those that an earlier download left. Negative
  // if damaged content was dropped.
  std::function<void(int64_t count, bool from_network)> on_bytes;
  std::function<void()> on_waiting;  // about every 20 ms while another process downloads this file
};

// Makes source's blob appear in the cache, complete, with the right size and hash, and on disk. The content
// arrives as up to settings.connections ranges at a time and is hashed and written in order: what an
// interrupted download leaves is always a prefix of the file, from which the next one resumes. Content
// with a wrong hash is dropped and fetched once more. Throws Error; after a full disk what has arrived stays.
void download_blob(HubClient& client, const RepoCache& cache, const std::string& commit,
                   const FileSource& source, const DownloadEvents& events);

}  // namespace tessera
