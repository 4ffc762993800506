// The program and libraries of a process, with the names of their functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

struct Dwfl;
struct Dwfl_Module;

namespace tessera {

class ProcessModules {
 public:
  // error() says when they cannot be read.
  explicit ProcessModules(pid_t pid);
  ~ProcessModules();
  ProcessModules(const ProcessModules&) = delete;
  ProcessModules& operator=(const ProcessModules&) = delete;

  const std::string& error() const { return error_; }
  Dwfl* dwfl() const { return dwfl_.get(); }

  // Null: the address is in none of them.
  Dwfl_Module* module_of(uint64_t address) const;
  // Demangled, with the types of the arguments; "" for an address outside any function.
  std::string function_at(uint64_t address) const;
  // "gemm.cc:123" where the program was built with debug information, otherwise "".
  std::string line_at(uint64_t address) const;

 private:
  struct End {
    void operator()(Dwfl* dwfl) const;
  };
  struct Callbacks;

  std::unique_ptr<Callbacks> callbacks_;
  std::unique_ptr<Dwfl, End> dwfl_;
  std::string error_;
};

// Of the last call of libdw that failed.
std::string libdw_error();

}  // namespace tessera
