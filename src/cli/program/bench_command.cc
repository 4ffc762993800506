// Hands the benchmarks to their own program.
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "platform/system.h"

namespace tessera {
namespace {

class BenchmarksCommand : public Command {
 public:
  std::string name() const override { return "bench"; }

  void declare_flags(FlagTable* table) override { declare(table, "benchmark", &arguments_); }
  std::string rest_flag() const override { return "benchmark"; }
  bool is_for_ranks() const override { return true; }  // tessera-bench refuses them where it has to

  void run(FlagTable*) override {
    const std::string program = program_path().parent_path() / "tessera-bench";
    if (!std::filesystem::exists(program)) {
      fail(ExitCode::kNoInput,
           "bench: {} does not exist: benchmarks are a program of their own; build the target tessera-bench, "
           "or install it with cmake --install BUILD_FOLDER --component bench",
           program);
    }
    std::vector<std::string> words = arguments_;
    words.insert(words.begin(), "tessera-bench");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv(program.c_str(), argv.data());
    fail_errno(ExitCode::kIoError, errno, fmt::format("cannot start {}", program));
  }

 private:
  std::vector<std::string> arguments_;
};

}  // namespace

std::unique_ptr<Command> make_bench_command() { return std::make_unique<BenchmarksCommand>(); }

}  // namespace tessera
