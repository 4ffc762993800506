// For tests: intercepts a test program's system calls that change files. It can record every change below a
// folder, so that the disk after a crash at any moment can be reconstructed (disk_replay.h), and make calls
// fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// A change. Files and folders are identified by number (the top folder is 0), not by name.
struct DiskOp {
  enum class Kind {
    kCreate,    // folder[name] = node, a new file
    kMakeDir,   // folder[name] = node, a new folder
    kWrite,     // node: `data` at `offset`
    kTruncate,  // node: `offset` is the size
    kSync,      // node: a file or folder
    kRename,    // to_folder[to_name] = node, without folder[name]
    kExchange,  // folder[name] = other, to_folder[to_name] = node
    kRemove     // without folder[name]
  };
  Kind kind;
  int64_t node = -1;
  int64_t folder = -1;
  std::string name = {};
  int64_t to_folder = -1;
  std::string to_name = {};
  int64_t other = -1;
  int64_t offset = 0;
  std::string data = {};

  std::string to_string() const;
};

// A file or folder that existed before the recording.
struct DiskNode {
  int64_t node;
  int64_t folder;  // the folder it is in
  std::string name;
  bool is_folder;
  std::string data;
};

// Records during its lifetime; one at a time.
class DiskRecording {
 public:
  explicit DiskRecording(const std::filesystem::path& folder);
  ~DiskRecording();
  DiskRecording(const DiskRecording&) = delete;
  DiskRecording& operator=(const DiskRecording&) = delete;

  const std::vector<DiskNode>& before() const;
  const std::vector<DiskOp>& ops() const;  // call when nothing is being written any more
};

// A call that is about to be made.
struct DiskCall {
  std::string_view
      name;  // "open", "pwrite", "write", "ftruncate", "fsync", "rename", "mkdir", "unlink", "close"
  std::string path;
  int fd = -1;  // if the call takes one
};
// The outcome of a call: an errno to fail with, or the maximum number of bytes that a write accepts. A failed
// close still closes.
struct DiskFault {
  int error = 0;
  int64_t max_bytes = INT64_MAX;
};

// During its lifetime, calls `decide` for every call below `folder` that changes something, one at a time.
class DiskFaults {
 public:
  DiskFaults(const std::filesystem::path& folder, std::function<DiskFault(const DiskCall&)> decide);
  ~DiskFaults();
  DiskFaults(const DiskFaults&) = delete;
  DiskFaults& operator=(const DiskFaults&) = delete;
};

}  // namespace tessera
