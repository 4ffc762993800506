#include "e2e/hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

namespace tessera {
namespace {

using namespace std::chrono_literals;

constexpr int kKinds = CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS;

// Runs in a child. Returns 0, or the errno of what failed.
int make_namespaces(const std::string& host_name, const std::string& etc_hosts) {
  if (unshare(kKinds) != 0 || sethostname(host_name.data(), host_name.size()) != 0) return errno;
  // Mounts made here do not propagate.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount(etc_hosts.c_str(), "/etc/hosts", nullptr, MS_BIND, nullptr) != 0) {
    return errno;
  }
  return 0;
}

// Runs in a child.
void enter_namespaces(pid_t holder) {
  for (const char* kind : {"net", "uts", "mnt"}) {
    const int fd = open(fmt::format("/proc/{}/ns/{}", holder, kind).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, 0) != 0) _exit(126);
    close(fd);
  }
}

}  // namespace

Hosts::Hosts(int count) : etc_hosts_(folder_.write("hosts", "")) {
  std::string names;
  for (int i = 0; i < count; ++i) names += fmt::format("{} {}\n", address(i), name(i));
  set_names(names);
  bridge_ = hold("bridge");
  configure(bridge_, {"link", "add", "bridge", "type", "bridge"});
  configure(bridge_, {"link", "set", "bridge", "up"});
  for (int i = 0; i < count && problem_.empty(); ++i) {
    hosts_.push_back(hold(name(i)));
    connect(i);
  }
}

Hosts::~Hosts() {
  hosts_.push_back(bridge_);
  for (const pid_t holder : hosts_) {
    if (holder <= 0) continue;
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  }
}

std::string Hosts::name(int host) { return fmt::format("host{}", host); }
std::string Hosts::address(int host) { return fmt::format("10.77.0.{}", host + 1); }

// Starts a process that holds new namespaces open for as long as it lives.
pid_t Hosts::hold(const std::string& host_name) {
  std::array<int, 2> ready = {};
  if (!problem_.empty() || pipe2(ready.data(), O_CLOEXEC) != 0) return 0;
  const pid_t test = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) _exit(0);
    const int error = make_namespaces(host_name, etc_hosts_);
    if (write(ready[1], &error, sizeof(error)) != sizeof(error) || error != 0) _exit(1);
    for (;;) pause();
  }
  int error = ECHILD;
  if (read(ready[0], &error, sizeof(error)) != sizeof(error)) error = ECHILD;
  close(ready[0]);
  close(ready[1]);
  if (error != 0) problem_ = fmt::format("no network namespaces here: {}", std::strerror(error));
  return pid;
}

void Hosts::configure(pid_t inside, const std::vector<std::string>& ip_arguments) {
  if (!problem_.empty()) return;
  std::vector<std::string> argv = {"ip"};
  argv.insert(argv.end(), ip_arguments.begin(), ip_arguments.end());
  StartedProcess ip(argv, {.prepare = [inside] { enter_namespaces(inside); }});
  if (ip.wait(10s) && ip.result().exit_code == 0) return;
  problem_ = fmt::format("ip {}: {}", fmt::join(ip_arguments, " "), ip.err());
}

void Hosts::connect(int host) {
  const pid_t holder = hosts_.back();
  const std::string port = fmt::format("port{}", host);
  configure(bridge_,
            {"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", std::to_string(holder)});
  configure(bridge_, {"link", "set", port, "master", "bridge", "up"});
  configure(holder, {"address", "add", address(host) + "/24", "dev", "eth0"});
  configure(holder, {"link", "set", "eth0", "up"});
  configure(holder, {"link", "set", "lo", "up"});
}

std::unique_ptr<StartedProcess> Hosts::start(int host, const std::vector<std::string>& argv,
                                             const std::vector<std::string>& environment) const {
  const pid_t holder = hosts_.at(static_cast<size_t>(host));
  return std::make_unique<StartedProcess>(
      argv, StartOptions{.environment = environment, .prepare = [holder] { enter_namespaces(holder); }});
}

// The process runs `body`, then executes `true`.
std::unique_ptr<StartedProcess> Hosts::run(int host, const std::function<void()>& body) const {
  const pid_t holder = hosts_.at(static_cast<size_t>(host));
  const auto prepare = [holder, body] {
    enter_namespaces(holder);
    body();
  };
  return std::make_unique<StartedProcess>(std::vector<std::string>{"true"}, StartOptions{.prepare = prepare});
}

// Rewritten in place, as the file is bind-mounted.
void Hosts::set_names(const std::string& lines_of_etc_hosts) const {
  std::ofstream(etc_hosts_, std::ios::binary | std::ios::trunc) << "127.0.0.1 localhost\n"
                                                                << lines_of_etc_hosts;
}

void Hosts::set_link(int host, bool up) const {
  const pid_t bridge = bridge_;
  StartedProcess ip({"ip", "link", "set", fmt::format("port{}", host), up ? "up" : "down"},
                    {.prepare = [bridge] { enter_namespaces(bridge); }});
  EXPECT_TRUE(ip.wait(10s) && ip.result().exit_code == 0) << ip.err();
}

std::string Hosts::limit_link(int host, double mbit_per_s) const {
  const std::pair<pid_t, std::string> ends[] = {{hosts_.at(static_cast<size_t>(host)), "eth0"},
                                                {bridge_, fmt::format("port{}", host)}};
  for (const auto& [inside, device] : ends) {
    const pid_t holder = inside;
    StartedProcess tc({"tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                       fmt::format("{:.3f}mbit", mbit_per_s), "burst", "64kb", "limit", "64mb"},
                      {.prepare = [holder] { enter_namespaces(holder); }});
    if (!tc.wait(10s) || tc.result().exit_code != 0) return "tc: " + tc.err();
  }
  return "";
}

}  // namespace tessera
