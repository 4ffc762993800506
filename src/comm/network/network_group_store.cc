// Network groups whose members find each other through the store.

#include "base/error.h"
#include "comm/network/network_group.h"
#include "comm/socket/address.h"
#include "comm/store/store_client.h"

namespace tessera {
namespace {

class StoreRendezvous : public Rendezvous {
 public:
  StoreRendezvous(StoreClient& store, const std::string& interface)
      : store_(store),
        address_(interface.empty()
                     ? store.local_address()
                     : choose_local_address(World{}, store.local_address(), interface).address) {}

  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_.get(key, timeout);
  }
  std::string host(int rank) const override { return store_.hosts()[static_cast<size_t>(rank)]; }
  std::string local_address() const override { return address_; }
  std::string job_key() const override { return store_.job_key(); }

 private:
  StoreClient& store_;
  std::string address_;
};

}  // namespace

std::unique_ptr<Rendezvous> NetworkGroup::rendezvous_of(StoreClient* store, const NetworkOptions& options) {
  if (store == nullptr) return nullptr;
  return std::make_unique<StoreRendezvous>(*store, options.interface);
}

}  // namespace tessera
