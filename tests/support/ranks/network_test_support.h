// Runs the members of a network group as threads of a test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cctype>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/network/fabric/fabric_choice.h"
#include "comm/network/fabric/fabric_library.h"
#include "comm/network/network_group.h"
#include "comm/ranks/part.h"
#include "comm/ranks/rendezvous.h"

namespace tessera {

// value(i) for every i from begin to end. Millions of elements are made and compared, under ThreadSanitizer
// too, where an assertion for each takes nine tenths of the time of a test.
template <typename Value>
auto values_of(int64_t begin, int64_t end, const Value& value) {
  std::vector<decltype(value(begin))> values(static_cast<size_t>(end - begin));
  auto* at = values.data();
  for (int64_t i = begin; i < end; ++i) *at++ = value(i);
  return values;
}

// Whether all bits are the same, and if not, the first element with another.
template <typename T>
testing::AssertionResult same_bits(std::span<const T> found, std::span<const T> expected) {
  if (found.size() != expected.size()) {
    return testing::AssertionFailure() << found.size() << " elements instead of " << expected.size();
  }
  if (found.empty() || std::memcmp(found.data(), expected.data(), found.size_bytes()) == 0) {
    return testing::AssertionSuccess();
  }
  size_t i = 0;
  while (std::memcmp(&found[i], &expected[i], sizeof(T)) == 0) ++i;
  return testing::AssertionFailure() << "element " << i << " of " << found.size() << " is "
                                     << testing::PrintToString(found[i]) << " instead of "
                                     << testing::PrintToString(expected[i]);
}
template <typename T>
testing::AssertionResult same_bits(const std::vector<T>& found, const std::vector<T>& expected) {
  return same_bits(std::span<const T>(found), std::span<const T>(expected));
}

// Overwrites the part of `values` with that of `other`.
template <typename T>
void copy_part(Part part, const std::vector<T>& other, std::vector<T>* values) {
  std::copy(other.begin() + part.begin, other.begin() + part.end, values->begin() + part.begin);
}

// An in-memory store. A test may rewrite what is read, for example to another address.
class LocalRendezvous : public Rendezvous {
 public:
  using Rewrite = std::function<std::string(const std::string& key, const std::string& value)>;
  explicit LocalRendezvous(Rewrite rewrite = nullptr) : rewrite_(std::move(rewrite)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); })) {
      fail(ExitCode::kTryAgain, "{}: nobody has set it", key);
    }
    return rewrite_ ? rewrite_(key, values_[key]) : values_[key];
  }
  std::string host(int rank) const override { return std::string(1, static_cast<char>('a' + rank)); }
  std::string local_address() const override { return "127.0.0.1"; }

 private:
  Rewrite rewrite_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

// The transports that tests of groups run over, as --fabric names them.
struct TestFabric {
  const char* name;
  // Why the library's version here cannot be used, which skips the tests.
  std::string why_missing() const {
    if (parse_fabric(name).is_tcp()) return {};
    if (!FabricLibrary::is_installed()) return "libfabric is not installed";
    if (!find_fabrics(name, "127.0.0.1")) return fmt::format("libfabric has no {} here", name);
    return {};
  }
};
inline void PrintTo(const TestFabric& fabric, std::ostream* out) { *out << fabric.name; }
// "tcp_ofi_rxm", for names of tests.
inline std::string test_name_of(const testing::TestParamInfo<TestFabric>& info) {
  std::string text = info.param.name;
  std::ranges::replace_if(
      text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return text;
}

class OverFabrics : public testing::TestWithParam<TestFabric> {
 protected:
  void SetUp() override {
    const std::string reason = GetParam().why_missing();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  // These, over the fabric of the test.
  static NetworkOptions options(std::chrono::milliseconds timeout = std::chrono::seconds(20),
                                int connections = 4) {
    NetworkOptions options;
    options.timeout = timeout;
    options.connections = connections;
    options.fabric = parse_fabric(GetParam().name);
    return options;
  }
  // Endpoints of libfabric take longer to open than sockets.
  static bool is_tcp() { return parse_fabric(GetParam().name).is_tcp(); }
  static int most_members() { return is_tcp() ? 5 : 3; }
};

// Instantiates SUITE, which derives from OverFabrics.
#define TESSERA_OVER_FABRICS(SUITE)                                                                       \
  INSTANTIATE_TEST_SUITE_P(Fabrics, SUITE, testing::Values(TestFabric{"tcp"}, TestFabric{"tcp;ofi_rxm"}), \
                           test_name_of)

struct TestMembers {
  int size = 2;
  NetworkOptions options{.timeout = std::chrono::seconds(20), .connections = 4};
  Rendezvous* rendezvous = nullptr;  // nullptr = a new LocalRendezvous
  // Keep every group open until all members are done: each finds the error itself instead of a closed
  // connection.
  bool end_together = false;
};

// Runs `body` as every member, each in a thread with its own group and failure detector, and returns what
// each threw ("" = nothing).
inline std::vector<std::string> run_members(const TestMembers& test,
                                            const std::function<void(NetworkGroup& group)>& body) {
  LocalRendezvous local;
  Rendezvous& rendezvous = test.rendezvous != nullptr ? *test.rendezvous : local;
  std::vector<int> ranks;
  for (int rank = 0; rank < test.size; ++rank) ranks.push_back(rank);
  std::vector<std::string> errors(static_cast<size_t>(test.size));
  std::barrier over(test.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < test.size; ++rank) {
    threads.emplace_back([&, rank] {
      FailureDetector failures;
      std::unique_ptr<NetworkGroup> group;
      try {
        group = std::make_unique<NetworkGroup>("test", ranks, rank, &rendezvous, test.options, failures);
        body(*group);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
      if (test.end_together) over.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// Bounds of n parts of about the same size; unequal where n does not divide count.
inline std::vector<Part> even_parts(int64_t count, int n) {
  std::vector<Part> parts;
  for (int i = 0; i < n; ++i) parts.push_back({count * i / n, count * (i + 1) / n});
  return parts;
}

}  // namespace tessera
