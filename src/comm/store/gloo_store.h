// Adapts the store to the interface of Gloo's rendezvous.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <vector>

#include "comm/store/store_client.h"

namespace tessera {

// The keys of one group, separated from others by the prefix. Waits throw Error when the job fails or the
// timeout passes. `store` must outlive this.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(StoreClient& store, std::string prefix, std::chrono::milliseconds timeout);

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  StoreClient& store_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tessera
