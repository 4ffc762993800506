#include "comm/store/gloo_store.h"

#include <algorithm>
#include <utility>

namespace tessera {

GlooStore::GlooStore(StoreClient& store, std::string prefix, std::chrono::milliseconds timeout)
    : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

void GlooStore::set(const std::string& key, const std::vector<char>& data) {
  store_.set(prefix_ + "/" + key, std::string(data.begin(), data.end()));
}

std::vector<char> GlooStore::get(const std::string& key) {
  const std::string value = store_.get(prefix_ + "/" + key, timeout_);
  return {value.begin(), value.end()};
}

void GlooStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void GlooStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const std::string& key : keys) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    store_.get(prefix_ + "/" + key, std::max(left, std::chrono::milliseconds(0)));
  }
}

}  // namespace tessera
