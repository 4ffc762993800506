// Several "hosts" on this machine: network namespaces, each with its own host name and /etc/hosts and a veth
// pair to a bridge in another namespace. All of it belongs to processes that end with the test, however it
// ends, and the machine's own network is not touched.
//
//     host0 eth0 10.77.0.1 --- port0 --.
//     host1 eth0 10.77.0.2 --- port1 --+-- bridge
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "e2e/process.h"

namespace tessera {

class Hosts {
 public:
  explicit Hosts(int count);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  // "" if they are up, or why that is not possible here (no permission, no iproute2).
  const std::string& problem() const { return problem_; }

  int count() const { return static_cast<int>(hosts_.size()); }
  static std::string name(int host);     // "host0"
  static std::string address(int host);  // "10.77.0.1"

  std::unique_ptr<StartedProcess> start(int host, const std::vector<std::string>& argv,
                                        const std::vector<std::string>& environment = {}) const;
  // Runs a function in a process on that host. The process ends with the function, or when the result is
  // destroyed.
  std::unique_ptr<StartedProcess> run(int host, const std::function<void()>& body) const;
  // Replaces the host names that all hosts know apart from their own. Initially host0, host1, ...
  void set_names(const std::string& lines_of_etc_hosts) const;
  // Unplugs the host's network cable, or plugs it back in.
  void set_link(int host, bool up) const;
  // Limits what the host's cable carries in each direction, headers included; "", or why that is not possible
  // here (no tc, a kernel without token bucket filters).
  std::string limit_link(int host, double mbit_per_s) const;

 private:
  pid_t hold(const std::string& host_name);
  // Runs `ip`; on failure sets problem_.
  void configure(pid_t inside, const std::vector<std::string>& ip_arguments);
  void connect(int host);

  TemporaryFolder folder_;
  std::string etc_hosts_;
  std::string problem_;
  pid_t bridge_ = 0;
  std::vector<pid_t> hosts_;  // the processes that hold the namespaces
};

}  // namespace tessera
