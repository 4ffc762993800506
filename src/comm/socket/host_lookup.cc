#include "comm/socket/host_lookup.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <utility>

#include "base/error.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

// The time for which the result of an abandoned lookup stays valid.
constexpr std::chrono::seconds kFresh{2};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList address_list(const std::string& host, int flags, int* error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  *error = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  return {*error == 0 ? list : nullptr, freeaddrinfo};
}

HostLookup::Result resolve(const std::string& host) {
  int error = 0;
  const AddressList list = address_list(host, 0, &error);
  HostLookup::Result result;
  if (error != 0) result.problem = gai_strerror(error);
  for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    error =
        getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    if (error == 0) result.addresses.emplace_back(text.data());
  }
  return result;
}

}  // namespace

bool is_numeric_address(const std::string& host) {
  int error = 0;
  address_list(host, AI_NUMERICHOST, &error);
  return error == 0;
}

HostLookup& HostLookup::system() {
  static auto& lookup = *new HostLookup(resolve);  // abandoned threads may outlive main()
  return lookup;
}

std::shared_future<HostLookup::Result> HostLookup::result_of(const std::string& host) {
  const std::lock_guard lock(mutex_);
  std::shared_future<Result>& running = running_[host];
  const bool is_over =
      running.valid() && running.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!running.valid() || (is_over && Clock::now() - running.get().time > kFresh)) {
    const auto task = std::make_shared<std::packaged_task<Result()>>([resolver = resolver_, host] {
      Result result = resolver(host);
      result.time = Clock::now();
      return result;
    });
    std::shared_future<Result> result = task->get_future().share();
    start_background_thread([task] { (*task)(); }).detach();
    running = std::move(result);
  }
  return running;
}

std::vector<std::string> HostLookup::addresses_of(const std::string& host, Clock::time_point limit) {
  if (is_numeric_address(host)) return resolve(host).addresses;
  const std::shared_future<Result> result = result_of(host);
  if (result.wait_until(limit) != std::future_status::ready) {
    fail(ExitCode::kTryAgain, "cannot resolve '{}': no answer from the name servers", host);
  }
  {
    const std::lock_guard lock(mutex_);
    running_.erase(host);
  }
  // Names of pods and new machines appear only some time after they start.
  if (result.get().addresses.empty()) {
    fail(ExitCode::kTryAgain, "cannot resolve '{}': {}", host, result.get().problem);
  }
  return result.get().addresses;
}

}  // namespace tessera
