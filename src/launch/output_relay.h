// Passes on what ranks write, in whole lines. Nothing here waits: a reader that is slow or stands still keeps
// only the output back, as it would that of a single program.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// One pipe from a rank.
struct RelaySource {
  int pipe = -1;       // read end; the relay closes it
  std::string prefix;  // before every shown line; "" = passed on as it is
  int shown_on = -1;   // standard output or standard error; -1: not shown
  int file = -1;       // gets the bytes as they are; -1: none; the relay closes it
};

// Lines shown on the same descriptor are never mixed. Of a line that was redrawn with carriage returns (a
// progress bar) a source with a prefix shows the last state, one without shows every state. A line of more
// than 1 MiB is shown in pieces: as lines of their own with a prefix, else as they are.
class OutputRelay {
 public:
  explicit OutputRelay(const std::vector<RelaySource>& sources);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  // Adds the descriptors to wait for until move() has something to do.
  void append_polls(std::vector<pollfd>* polls) const;
  // Reads what is there and writes what can be written at once.
  void move();
  // The ranks have ended: reads the rest and takes half lines for whole ones. Processes that they have left
  // behind are not waited for, whether they keep the descriptors or write on.
  void end_sources();
  // Something is still to be written.
  bool has_pending() const;

  // A reader has gone away (| head).
  bool reader_is_gone() const { return reader_is_gone_; }
  // Why output or a file was lost, one line; "" = none was.
  const std::string& write_error() const { return write_error_; }

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
    std::string line;  // begun, not shown yet
  };

  Target* target_of(int fd);
  bool has_room(const Source& source) const;
  int64_t read_from(Source* source);
  void take(Source* source, std::string_view text);
  void show(Source* source, std::string_view lines);
  void end(Source* source);
  void write_file(Source* source, std::string_view text);
  void write_to(Target* target);
  void close_unread_sources();

  std::vector<Target> targets_;
  std::vector<Source> sources_;
  bool reader_is_gone_ = false;
  std::string write_error_;
};

}  // namespace tessera
