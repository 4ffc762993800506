// Another program that does the same work, driven in turn with ours: it takes one command per line on its
// standard input and answers with one line on its standard output.
//
//   it starts        -> ready NAME              what it is, for the report: "PyTorch 1.13.1"
//   forward_backward -> 3.2104                  seconds of a forward and a backward pass
//   optimizer        -> 0.8210                  seconds of one update
#pragma once

#include <string>

namespace tessera {

class OtherProgram {
 public:
  // Starts `command` with sh and waits until it is ready. Create before any ThreadPool, whose pinning it
  // would inherit. `variable`, "NAME=value" or "", is added to its environment unless already set there.
  // Error(kUsage) if it exits or answers anything else.
  explicit OtherProgram(std::string command, std::string variable = "");
  // Closes its input and waits for it to exit.
  ~OtherProgram();
  OtherProgram(const OtherProgram&) = delete;
  OtherProgram& operator=(const OtherProgram&) = delete;

  const std::string& name() const { return name_; }
  // Seconds it took for "forward_backward" or "optimizer".
  double run(const std::string& what);

 private:
  std::string read_line();

  std::string command_;
  int socket_ = -1;
  int pid_ = -1;
  std::string received_;
  std::string name_;
};

}  // namespace tessera
