// Looks up function names in the program and libraries of a process.
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
  // If they cannot be read, error() says why.
  explicit ProcessModules(pid_t pid);
  ~ProcessModules();
  ProcessModules(const ProcessModules&) = delete;
  ProcessModules& operator=(const ProcessModules&) = delete;

  const std::string& error() const { return error_; }
  Dwfl* dwfl() const { return dwfl_.get(); }

  // Null if the address is in none of them.
  Dwfl_Module* module_of(uint64_t address) const;
  // Demangled, with argument types; "" for an address outside any function.
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

// The error of the last failed libdw call.
std::string libdw_error();

}  // namespace tessera
