#include "comm/network/fabric/fabric_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <vector>

#include "base/error.h"

namespace tessera {
namespace {

constexpr size_t kMaxAddressBytes = 512;
constexpr size_t kMinQueueSize = 1024;
// Transfers posted at once; providers allocate for as many, and those beyond are posted later.
constexpr size_t kMaxPosted = 256;
// Completions read at once.
constexpr size_t kReadSize = 16;

// The n-th of the domains, by name, of the first provider in the list.
fi_info* nth_domain(fi_info* list, int number) {
  std::vector<fi_info*> domains;
  std::set<std::string> names;
  for (fi_info* info = list; info != nullptr; info = info->next) {
    const bool same = std::string(info->fabric_attr->prov_name) == list->fabric_attr->prov_name;
    if (same && names.insert(info->domain_attr->name).second) domains.push_back(info);
  }
  return domains[static_cast<size_t>(number) % domains.size()];
}

[[noreturn]] void refuse_provider(const std::string& provider, const std::string& local_address) {
  const char* const filter = std::getenv("FI_PROVIDER");
  fail(
      ExitCode::kBadConfig,
      "--fabric {}: libfabric has no reliable datagrams with tags by this provider{}{}; 'tessera doctor' and "
      "'fi_info -t FI_EP_RDM' list what there is",
      provider, local_address.empty() ? "" : fmt::format(" at {}", local_address),
      filter == nullptr ? "" : fmt::format(", and FI_PROVIDER={} limits the choice", filter));
}

}  // namespace

FabricEndpoint::FabricEndpoint(const std::string& provider, const std::string& local_address, int number,
                               int num_peers)
    : provider_(provider) {
  const FabricLibrary& library = FabricLibrary::get();
  const FabricInfo found = find_fabrics(provider, local_address);
  if (!found) refuse_provider(provider, local_address);
  info_ = FabricInfo(library.dupinfo(nth_domain(found.get(), number)));
  if (!info_) throw std::bad_alloc();
  domain_name_ = info_->domain_attr->name;
  info_->tx_attr->size = std::min(info_->tx_attr->size, kMaxPosted);
  info_->rx_attr->size = std::min(info_->rx_attr->size, kMaxPosted);
  check("open the fabric", library.fabric(info_->fabric_attr, fabric_.to_open(), nullptr));
  check("open the domain", ::fi_domain(fabric_.get(), info_.get(), domain_.to_open(), nullptr));
  fi_av_attr address_attributes{};
  address_attributes.type = FI_AV_TABLE;
  address_attributes.count = static_cast<size_t>(num_peers);
  check("open an address table",
        ::fi_av_open(domain_.get(), &address_attributes, addresses_.to_open(), nullptr));
  check(local_address.empty() ? "open an endpoint" : fmt::format("open an endpoint at {}", local_address),
        ::fi_endpoint(domain_.get(), info_.get(), endpoint_.to_open(), nullptr));
  open_queue();
  check("bind the address table", ::fi_ep_bind(endpoint_.get(), &addresses_.get()->fid, 0));
  check("bind the completion queue",
        ::fi_ep_bind(endpoint_.get(), &queue_.get()->fid, FI_TRANSMIT | FI_RECV));
  check("enable the endpoint", ::fi_enable(endpoint_.get()));
}

void FabricEndpoint::open_queue() {
  fi_cq_attr attributes{};
  attributes.size = std::max(kMinQueueSize, info_->rx_attr->size + info_->tx_attr->size);
  attributes.format = FI_CQ_FORMAT_TAGGED;
  attributes.wait_obj = FI_WAIT_FD;
  if (::fi_cq_open(domain_.get(), &attributes, queue_.to_open(), nullptr) == 0) {
    if (::fi_control(&queue_.get()->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
    return;
  }
  attributes.wait_obj = FI_WAIT_NONE;
  check("open a completion queue", ::fi_cq_open(domain_.get(), &attributes, queue_.to_open(), nullptr));
}

void FabricEndpoint::fail_to(const std::string& what, int64_t error) const {
  fail(ExitCode::kIoError, "fabric {}, domain {}: cannot {}: {}", provider_, domain_name_, what,
       fabric_error(error));
}

std::string FabricEndpoint::address() const {
  std::array<char, kMaxAddressBytes> bytes{};
  size_t size = bytes.size();
  check("read its own address", ::fi_getname(&endpoint_.get()->fid, bytes.data(), &size));
  return {bytes.data(), size};
}

fi_addr_t FabricEndpoint::add_peer(const std::string& address) {
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const int added = ::fi_av_insert(addresses_.get(), address.data(), 1, &peer, 0, nullptr);
  if (added != 1) fail_to("use the address of a peer", added < 0 ? added : FI_EADDRNOTAVAIL);
  return peer;
}

void FabricEndpoint::register_memory(std::span<std::byte> memory) {
  Registered& registered = registered_.emplace_back();
  registered.memory = memory;
  check("register memory (raise 'ulimit -l', or the container's memlock limit)",
        ::fi_mr_reg(domain_.get(), memory.data(), memory.size(), FI_SEND | FI_RECV, 0, registered_.size(), 0,
                    registered.region.to_open(), nullptr));
  registered.descriptor = ::fi_mr_desc(registered.region.get());
}

void FabricEndpoint::forget_memory(std::span<std::byte> memory) {
  registered_.remove_if([&](const Registered& each) { return each.memory.data() == memory.data(); });
}

void* FabricEndpoint::descriptor_of(const std::byte* data) const {
  for (const Registered& each : registered_) {
    if (data >= each.memory.data() && data < each.memory.data() + each.memory.size()) return each.descriptor;
  }
  return nullptr;
}

bool FabricEndpoint::post_send(FabricOp& op, fi_addr_t to, std::span<const std::byte> bytes, uint64_t tag) {
  return settle_post(
      op, ::fi_tsend(endpoint_.get(), bytes.data(), bytes.size(), descriptor_of(bytes.data()), to, tag, &op));
}

bool FabricEndpoint::post_receive(FabricOp& op, std::span<std::byte> bytes, uint64_t tag) {
  return settle_post(op, ::fi_trecv(endpoint_.get(), bytes.data(), bytes.size(), descriptor_of(bytes.data()),
                                    FI_ADDR_UNSPEC, tag, 0, &op));
}

bool FabricEndpoint::send_empty(fi_addr_t to, uint64_t tag) {
  const ssize_t result = ::fi_tinject(endpoint_.get(), nullptr, 0, to, tag);
  // A peer that is gone is found by those who wait for it.
  return result != -FI_EAGAIN;
}

bool FabricEndpoint::settle_post(FabricOp& op, ssize_t result) {
  if (result == -FI_EAGAIN) return false;
  op.state = result == 0 ? FabricOp::State::kPosted : FabricOp::State::kFailed;
  op.error = static_cast<int>(-result);
  return true;
}

int FabricEndpoint::progress() {
  std::array<fi_cq_tagged_entry, kReadSize> entries;
  const ssize_t count = ::fi_cq_read(queue_.get(), entries.data(), entries.size());
  if (count == -FI_EAGAIN) return 0;
  if (count == -FI_EAVAIL) {
    read_error();
    return 1;
  }
  if (count < 0) fail_to("read its completion queue", count);
  for (const fi_cq_tagged_entry& entry : std::span(entries).first(static_cast<size_t>(count))) {
    auto* const op = static_cast<FabricOp*>(entry.op_context);
    if (op == nullptr) continue;
    op->state = FabricOp::State::kDone;
    op->num_bytes = static_cast<int64_t>(entry.len);
  }
  return static_cast<int>(count);
}

void FabricEndpoint::read_error() {
  fi_cq_err_entry entry{};
  const ssize_t count = ::fi_cq_readerr(queue_.get(), &entry, 0);
  if (count == -FI_EAGAIN) return;
  if (count < 0) fail_to("read the error of a transfer", count);
  auto* const op = static_cast<FabricOp*>(entry.op_context);
  // The provider's own transfer failed: ours that depend on it fail too, or never end.
  if (op == nullptr) return;
  op->state = FabricOp::State::kFailed;
  op->error = entry.err;
  op->num_bytes = static_cast<int64_t>(entry.len);
}

bool FabricEndpoint::may_wait() {
  if (wait_fd_ < 0) return false;
  fid* queue = &queue_.get()->fid;
  return ::fi_trywait(fabric_.get(), &queue, 1) == FI_SUCCESS;
}

}  // namespace tessera
