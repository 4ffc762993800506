// The store as Gloo's rendezvous wants it.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <vector>

#include "comm/store_client.h"

namespace tessera {

// Keys of one group, kept apart by the prefix. Waiting ends with the job's failure, as Error, or after the
// timeout. `store` must outlive this.
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
