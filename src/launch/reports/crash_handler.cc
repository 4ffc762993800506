#include "launch/reports/crash_handler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>

#include "base/sanitizers.h"

// Where the program is loaded.
extern "C" [[gnu::visibility("hidden")]] const char __ehdr_start[];

namespace tessera {
namespace {

#if defined(TESSERA_ASAN) || defined(TESSERA_TSAN)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

constexpr std::array<int, 5> kDeadly = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
constexpr int64_t kNamesTimeoutMs = 5000;
constexpr int64_t kMaxLineBytes = 4096;
// On a machine with AMX, the registers saved by the kernel alone take 11 KiB.
constexpr size_t kSignalStackBytes = size_t{256} << 10;

alignas(64) std::array<std::byte, kSignalStackBytes> signal_stack;
const char* names_program = nullptr;
void (*before_crash_line)() = nullptr;
std::atomic<int> crash_rank{-1};

// A fault inside the handler calls it again on the same thread; it then reports what it has found so far.
enum class Stage { kNone, kUnwinding, kReporting };
std::atomic<int> dying_thread{0};
volatile Stage crash_stage = Stage::kNone;
CrashRecord crash_record;
uint64_t stack_pointer = 0;

int64_t now_ms() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Builds text in a fixed buffer, as library functions may allocate.
class Line {
 public:
  Line& operator<<(const char* text) {
    for (; *text != '\0' && size_ < kMaxLineBytes; ++text) bytes_[size_++] = *text;
    return *this;
  }
  Line& number(uint64_t value, unsigned base) {
    std::array<char, 24> digits = {};
    size_t at = digits.size() - 1;
    do {
      digits[--at] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value > 0);
    return *this << digits.data() + at;
  }
  char* free() { return bytes_.data() + size_; }
  size_t num_free() const { return kMaxLineBytes - size_; }
  void grow(size_t count) { size_ += count; }
  size_t size() const { return size_; }
  void write_to(int fd) const { [[maybe_unused]] const ssize_t written = write(fd, bytes_.data(), size_); }

 private:
  std::array<char, kMaxLineBytes> bytes_;
  size_t size_ = 0;
};

void write_record(int fd) {
  if (write(fd, &crash_record, sizeof(crash_record)) != static_cast<ssize_t>(sizeof(crash_record))) return;
  // write() stops where the mapped stack ends; reading it here would fault.
  const auto* from = reinterpret_cast<const std::byte*>(stack_pointer);
  for (int64_t done = 0; stack_pointer != 0 && done < kCrashStackBytes;) {
    const ssize_t count = write(fd, from + done, static_cast<size_t>(kCrashStackBytes - done));
    if (count <= 0) break;
    done += count;
  }
}

// A separate function, so that none of its caller's variables is live in both processes.
[[gnu::noinline]] pid_t start_names_program(int in, int out) {
  const pid_t pid = vfork();
  if (pid != 0) return pid;
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  const std::array<const char*, 3> arguments = {"tessera", kDescribeCrashArgument, nullptr};
  execve(names_program, const_cast<char* const*>(arguments.data()), environ);
  _exit(127);
}

// Appends what the other process writes. False if it fails or is too slow.
bool read_names(pid_t pid, int fd, Line* line) {
  const int64_t deadline = now_ms() + kNamesTimeoutMs;
  bool at_end = false;
  while (!at_end) {
    pollfd wanted = {fd, POLLIN, 0};
    const int64_t left = deadline - now_ms();
    if (left <= 0 || poll(&wanted, 1, static_cast<int>(left)) <= 0) break;
    const ssize_t count = read(fd, line->free(), line->num_free());
    at_end = count <= 0;
    if (count > 0) line->grow(static_cast<size_t>(count));
  }
  if (!at_end) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return at_end && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool append_names(Line* line) {
  int record_pipe[2], names_pipe[2];
  if (pipe2(record_pipe, O_CLOEXEC) != 0) return false;
  if (pipe2(names_pipe, O_CLOEXEC) != 0) {
    close(record_pipe[0]);
    close(record_pipe[1]);
    return false;
  }
  const pid_t pid = start_names_program(record_pipe[0], names_pipe[1]);
  close(record_pipe[0]);
  close(names_pipe[1]);
  if (pid > 0) write_record(record_pipe[1]);
  close(record_pipe[1]);
  const bool done = pid > 0 && read_names(pid, names_pipe[0], line);
  close(names_pipe[0]);
  return done;
}

void append_addresses(Line* line) {
  *line << "error: ";
  if (crash_record.rank >= 0)
    (*line << "rank ").number(static_cast<uint64_t>(crash_record.rank), 10) << " was ";
  *line << "killed by signal ";
  line->number(static_cast<uint64_t>(crash_record.signal), 10)
      << " (SIG" << sigabbrev_np(crash_record.signal) << ")";
  const auto base = reinterpret_cast<uint64_t>(__ehdr_start);
  for (int64_t i = 0; i < crash_record.num_frames; ++i) {
    const uint64_t frame = crash_record.frames[static_cast<size_t>(i)];
    *line << (i == 0 ? ", at " : " <- ");
    if (frame >= base && frame - base < uint64_t{1} << 30) {
      (*line << "tessera+0x").number(frame - base, 16);
    } else {
      (*line << "0x").number(frame, 16);
    }
  }
  *line << "\n";
}

// Finds the return addresses from the fault outwards, skipping the frames of this handler.
void find_frames(uint64_t fault) {
  crash_record.frames[0] = fault;
  crash_record.num_frames = 1;
  crash_stage = Stage::kUnwinding;
  std::array<void*, 32> addresses = {};
  const int count = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  const auto end = addresses.begin() + count;
  auto frame = std::find(addresses.begin(), end, reinterpret_cast<void*>(fault));
  if (frame == end) return;
  for (++frame; frame != end && crash_record.num_frames < std::ssize(crash_record.frames); ++frame) {
    crash_record.frames[static_cast<size_t>(crash_record.num_frames++)] = reinterpret_cast<uint64_t>(*frame);
  }
}

void report() {
  crash_stage = Stage::kReporting;
  Line line;
  if (!append_names(&line)) {
    line = Line();
    append_addresses(&line);
  }
  if (line.size() == 0) return;  // the agent shows it
  if (before_crash_line != nullptr) before_crash_line();
  line.write_to(STDERR_FILENO);
}

// Returns only in the init process of a container, which its own signals cannot kill.
void send_to_this_thread(int number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(number, &action, nullptr);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, number);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
  syscall(SYS_tgkill, getpid(), static_cast<pid_t>(syscall(SYS_gettid)), number);
}

void handle_crash(int number, siginfo_t* info, void* context) {
  const auto thread = static_cast<int>(syscall(SYS_gettid));
  int nobody = 0;
  if (dying_thread.compare_exchange_strong(nobody, thread)) {
    const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
    stack_pointer = static_cast<uint64_t>(registers[REG_RSP]);
    crash_record.signal = number;
    crash_record.code = info->si_code;
    crash_record.pid = getpid();
    crash_record.parent = getppid();
    crash_record.rank = crash_rank.load();
    crash_record.program = reinterpret_cast<uint64_t>(__ehdr_start);
    // si_addr and si_pid share storage.
    if (info->si_code > 0) {
      crash_record.address = reinterpret_cast<uint64_t>(info->si_addr);
    } else {
      crash_record.sender = info->si_pid;
    }
    find_frames(static_cast<uint64_t>(registers[REG_RIP]));
    report();
  } else if (nobody != thread) {
    for (;;) pause();  // another thread crashed first and will end the process
  } else if (crash_stage == Stage::kUnwinding) {
    report();
  }
  send_to_this_thread(crash_record.signal);
  // A fault recurs once the handler returns, which ends even an init process.
  if (crash_record.code <= 0) _exit(128 + crash_record.signal);
}

// The signal stack of the thread it lives on; pages that no handler touches take no memory.
class ThreadSignalStack {
 public:
  ThreadSignalStack() {
    memory_ = mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) return;  // it has none, then
    stack_t stack = {};
    stack.ss_sp = memory_;
    stack.ss_size = kSignalStackBytes;
    sigaltstack(&stack, nullptr);
  }
  ~ThreadSignalStack() {
    if (memory_ == MAP_FAILED) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(memory_, kSignalStackBytes);
  }
  ThreadSignalStack(const ThreadSignalStack&) = delete;
  ThreadSignalStack& operator=(const ThreadSignalStack&) = delete;

 private:
  void* memory_;
};

struct ThreadStart {
  void* (*routine)(void*);
  void* argument;
};

[[maybe_unused]] void* run_thread(void* argument) {
  const ThreadStart start = *std::unique_ptr<ThreadStart>(static_cast<ThreadStart*>(argument));
  const ThreadSignalStack stack;
  return start.routine(start.argument);
}

}  // namespace

void install_crash_handler(const char* program, void (*before_line)()) {
  if (kIsSanitized) return;
  names_program = program;
  before_crash_line = before_line;
  std::array<void*, 1> unused = {};
  backtrace(unused.data(), 1);  // loads libgcc while that is still safe
  stack_t stack = {};
  stack.ss_sp = signal_stack.data();
  stack.ss_size = signal_stack.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = handle_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigfillset(&action.sa_mask);
  for (const int number : kDeadly) sigdelset(&action.sa_mask, number);
  for (const int number : kDeadly) sigaction(number, &action, nullptr);
}

void set_crash_rank(int rank) { crash_rank = rank; }

}  // namespace tessera

#if !defined(TESSERA_ASAN) && !defined(TESSERA_TSAN)
// This starts all threads of the program, those of libraries included.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*),
                              void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  using tessera::ThreadStart;
  std::unique_ptr<ThreadStart> start(new (std::nothrow) ThreadStart{routine, argument});
  if (!start) return EAGAIN;
  const int error = create(thread, attributes, tessera::run_thread, start.get());
  if (error == 0) static_cast<void>(start.release());  // the thread frees it
  return error;
}
#endif
