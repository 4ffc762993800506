#include "launch/reports/process_modules.h"

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

namespace tessera {

struct ProcessModules::Callbacks {
  Dwfl_Callbacks value = {};
};

void ProcessModules::End::operator()(Dwfl* dwfl) const { dwfl_end(dwfl); }

std::string libdw_error() {
  const char* message = dwfl_errmsg(-1);
  return message == nullptr ? "no stack" : message;
}

ProcessModules::ProcessModules(pid_t pid) : callbacks_(std::make_unique<Callbacks>()) {
  callbacks_->value.find_elf = dwfl_linux_proc_find_elf;
  callbacks_->value.find_debuginfo = dwfl_standard_find_debuginfo;
  dwfl_.reset(dwfl_begin(&callbacks_->value));
  if (dwfl_ == nullptr || dwfl_linux_proc_report(dwfl_.get(), pid) != 0 ||
      dwfl_report_end(dwfl_.get(), nullptr, nullptr) != 0) {
    error_ = libdw_error();
  }
}

ProcessModules::~ProcessModules() = default;

Dwfl_Module* ProcessModules::module_of(uint64_t address) const {
  return error_.empty() ? dwfl_addrmodule(dwfl_.get(), address) : nullptr;
}

std::string ProcessModules::function_at(uint64_t address) const {
  Dwfl_Module* module = module_of(address);
  const char* name = module == nullptr ? nullptr : dwfl_module_addrname(module, address);
  if (name == nullptr) return "";
  int error = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &error),
                                                    std::free);
  return error == 0 ? text.get() : name;
}

std::string ProcessModules::line_at(uint64_t address) const {
  Dwfl_Module* module = module_of(address);
  Dwfl_Line* line = module == nullptr ? nullptr : dwfl_module_getsrc(module, address);
  int number = 0;
  const char* file =
      line == nullptr ? nullptr : dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
  if (file == nullptr) return "";
  return fmt::format("{}:{}", std::filesystem::path(file).filename().string(), number);
}

}  // namespace tessera
