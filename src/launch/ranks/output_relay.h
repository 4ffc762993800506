// Forwards the output of ranks, in whole lines. Nothing here blocks: a slow or stopped reader holds back only
// the output, as it would for a single program. Output that cannot be written, to a full disk, a closed
// descriptor or a pipe whose reader is gone, is lost with one warning, and the ranks never learn of it.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// One pipe from a rank.
struct RelaySource {
  int pipe = -1;       // read end; the relay closes it
  std::string prefix;  // put before every shown line; "" = forwarded unchanged
  int shown_on = -1;   // standard output or standard error; -1: not shown
  int file = -1;       // receives the bytes unchanged; -1: none; the relay closes it
};

// Lines shown on the same descriptor are never interleaved. If a line is redrawn with carriage returns (a
// progress bar), a source with a prefix shows only the last state, one without shows every state. A line of
// more than 1 MiB is shown in pieces: with a prefix as separate lines, otherwise unchanged.
class OutputRelay {
 public:
  explicit OutputRelay(const std::vector<RelaySource>& sources);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Adds the descriptors to poll for work for move().
  void append_polls(std::vector<pollfd>* polls) const;
  // Reads what is available and writes what can be written without blocking.
  void move();
  // Call when the ranks have ended: reads the rest and treats partial lines as whole ones. Does not wait for
  // processes they left running, which may hold the descriptors or keep writing.
  void end_sources();
  // Whether something is still to be written.
  bool has_pending() const;

 private:
  struct Target {
    int fd;
    bool shows_status;  // a terminal that a rank may draw a progress line on
    bool is_open;
    std::string pending;
  };
  struct Source {
    RelaySource how;
    Target* target;  // null: not shown
    bool is_open;
    std::string line;  // incomplete, not shown yet
  };

  Target* target_of(int fd);
  bool has_room(const Source& source) const;
  int64_t read_from(Source* source);
  void take(Source* source, std::string_view text);
  void show(Source* source, std::string_view lines);
  void end(Source* source);
  void write_file(Source* source, std::string_view text);
  void write_to(Target* target);

  std::vector<Target> targets_;
  std::vector<Source> sources_;
};

}  // namespace tessera
