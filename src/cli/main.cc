#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "cli/app.h"
#include "cli/terminal.h"
#include "platform/cpu.h"

namespace {

int report(tessera::ExitCode code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    tessera::request_amx_permission();  // before any thread exists
    tessera::protect_standard_descriptors();
    tessera::set_closed_output(tessera::ClosedOutput::kEndsProgram);
    tessera::install_terminal_cleanup();
    tessera::run_program(std::vector<std::string>(argv + 1, argv + argc));
    return static_cast<int>(tessera::ExitCode::kDone);
  } catch (const tessera::Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(tessera::ExitCode::kInternal, "out of memory");
  } catch (const std::exception& error) {
    return report(tessera::ExitCode::kInternal, "unexpected: " + tessera::printable(error.what(), 300));
  }
}
