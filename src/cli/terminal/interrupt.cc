#include "cli/terminal/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>

namespace tessera {
namespace {

std::atomic<bool> was_interrupted = false;
struct sigaction former_action;

// oneDNN's float32 products keep the stack pointer in memory from malloc while they run: a handler on the
// interrupted stack would overwrite the heap below it. With AMX, the registers saved by the kernel take 11
// KiB.
alignas(64) std::array<std::byte, size_t{64} << 10> handler_stack;

}  // namespace

InterruptFlag::InterruptFlag() {
  stack_t stack = {};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = [](int) { was_interrupted = true; };
  action.sa_flags = SA_ONSTACK;  // without SA_RESTART
  sigaction(SIGINT, &action, &former_action);
}

InterruptFlag::~InterruptFlag() { sigaction(SIGINT, &former_action, nullptr); }

bool InterruptFlag::take() { return was_interrupted.exchange(false); }

}  // namespace tessera
