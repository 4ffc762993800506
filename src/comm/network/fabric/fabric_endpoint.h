// One endpoint of libfabric: reliable datagrams with tags, its completion queue and its address table. Used
// by one thread at a time.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string>

#include "comm/network/fabric/fabric_library.h"

namespace tessera {

// A transfer. It must stay where it is while it is posted.
struct FabricOp {
  enum class State { kIdle, kPosted, kDone, kFailed };

  fi_context2 context{};  // the provider's; the first member, so that a completion leads back here
  State state = State::kIdle;
  int64_t num_bytes = 0;  // received
  int error = 0;          // of libfabric, > 0
};

// Closes an object of libfabric.
template <typename T>
class FabricObject {
 public:
  FabricObject() = default;
  ~FabricObject() { close(); }
  FabricObject(const FabricObject&) = delete;
  FabricObject& operator=(const FabricObject&) = delete;
  T* get() const { return object_; }
  T** to_open() { return &object_; }
  void close() {
    if (object_ != nullptr) ::fi_close(&object_->fid);
    object_ = nullptr;
  }

 private:
  T* object_ = nullptr;
};

class FabricEndpoint {
 public:
  // On the `number`-th of the provider's domains, counted round and round. `local_address`: find_fabrics().
  // Error(kBadConfig) if there is none, Error(kIoError) names what failed.
  FabricEndpoint(const std::string& provider, const std::string& local_address, int number, int num_peers);

  // Bytes that others pass to add_peer().
  std::string address() const;
  fi_addr_t add_peer(const std::string& address);

  // Where the provider wants registered memory (fabric_choice.h), all messages must be in such.
  void register_memory(std::span<std::byte> memory);
  // No transfer may be under way there.
  void forget_memory(std::span<std::byte> memory);

  // Whether it was posted; if not, once more after progress(). A failure is the op's.
  bool post_send(FabricOp& op, fi_addr_t to, std::span<const std::byte> bytes, uint64_t tag);
  // Only a message of exactly this tag; a longer one fails with FI_ETRUNC.
  bool post_receive(FabricOp& op, std::span<std::byte> bytes, uint64_t tag);
  // Sends a message without bytes, which needs no wait. Whether it was sent; if not, as with post_send().
  bool send_empty(fi_addr_t to, uint64_t tag);
  // Moves what can be moved; returns how many transfers ended.
  int progress();

  // A descriptor to wait for if may_wait(); -1 = the provider has none.
  int wait_fd() const { return wait_fd_; }
  bool may_wait();

  const std::string& provider() const { return provider_; }
  const std::string& domain() const { return domain_name_; }

 private:
  struct Registered {
    std::span<std::byte> memory;
    FabricObject<fid_mr> region;
    void* descriptor = nullptr;
  };

  void open_queue();
  void* descriptor_of(const std::byte* data) const;
  bool settle_post(FabricOp& op, ssize_t result);
  void read_error();
  [[noreturn]] void fail_to(const std::string& what, int64_t error) const;
  void check(const std::string& what, int64_t error) const {
    if (error != 0) fail_to(what, error);
  }

  const std::string provider_;
  std::string domain_name_;
  FabricInfo info_;
  // In the order in which they are opened; closed in reverse.
  FabricObject<fid_fabric> fabric_;
  FabricObject<fid_domain> domain_;
  FabricObject<fid_av> addresses_;
  FabricObject<fid_cq> queue_;
  std::list<Registered> registered_;
  FabricObject<fid_ep> endpoint_;
  int wait_fd_ = -1;
};

}  // namespace tessera
