// A folder into which another process writes rows while training uses them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace tessera {

// The feeder writes JSON Lines files 0.jsonl, 1.jsonl, ... under other names and renames them when they are
// complete. They are read in order, and each is deleted once the next one is asked for, so that the feeder
// keeps a few there. `end` says that no more will come. `feeder` has the feeder's process id and, if that may
// be another machine, its host name: if that process is gone and the awaited file is not there, the wait ends
// in Error(kNoInput). After a restart of ranks the program writes `again`: the feeder deletes its files, then
// `again`, and restarts with the first row, as 0.jsonl.
class RowSpool {
 public:
  using Waiting = std::function<void()>;  // called about every 20 ms of a wait; may throw

  // Error(kNoInput) if there is no such folder.
  explicit RowSpool(std::filesystem::path folder);

  // The program's own files, of all processes that read this spool: the first file, and rows once they are
  // tokenized.
  std::filesystem::path own_folder() const { return folder_ / "tokenized"; }
  // A copy of 0.jsonl, which stays: every process looks at it to see what the rows are.
  static std::filesystem::path first_file(const std::filesystem::path& folder);
  void wait_for_first_file(const Waiting& waiting) const;

  // Claims the files for the ranks of one start, which all have the same `reading`; the caller holds a lock
  // on the spool. False if another process of this start has read them already. Deletes the rows tokenized by
  // an earlier start, and has the feeder begin again if there was one.
  bool begin_reading(const std::string& reading, const Waiting& waiting) const;
  // Deletes the file that it returned before, and waits for the next one; nullopt at the end.
  std::optional<std::filesystem::path> next_file(const Waiting& waiting);
  // Deletes all rows that are tokenized.
  void clear() const;

 private:
  bool is_there(const std::string& name) const;
  bool feeder_is_gone() const;
  // Until is_over(); `awaited` names it.
  void wait_until(const std::function<bool()>& is_over, const std::string& awaited,
                  const Waiting& waiting) const;

  std::filesystem::path folder_;
  int64_t next_file_ = 0;
};

}  // namespace tessera
