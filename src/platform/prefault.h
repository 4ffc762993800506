// Backs large buffers with memory before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "platform/thread_pool.h"

namespace tessera {

// Makes the system back every page of `memory` now and leaves its contents unchanged, so that page faults do
// not hit the first step. Thread t of n takes the t-th of n consecutive shares, as loops over this memory
// will (ThreadPool::parallel_for), because the kernel places a page on the NUMA node of the thread that first
// touches it.
void prefault(ThreadPool& pool, std::span<std::byte> memory);

// Prefaults memfd memory that several processes map and may already be using: takes the 2 MiB blocks that
// begin in [begin, end) of `memory`, so that processes with adjacent ranges take each block once. Blocks
// become huge pages even if the system's shmem_enabled is "never" (MADV_COLLAPSE, Linux 6.1), unless it is
// "deny" or memory is fragmented; the other processes then map them as huge pages too, if `memory` begins at
// a multiple of 2 MiB.
void prefault_shared(ThreadPool& pool, std::span<std::byte> memory, int64_t begin, int64_t end);

// Bytes of the mapping containing `address` that are on huge pages now (AnonHugePages and ShmemPmdMapped of
// /proc/self/smaps); nullopt if the kernel does not report it.
std::optional<int64_t> huge_page_bytes(const void* address);
// Bytes on huge pages of a new, prefaulted buffer of kHugePageTrialBytes.
std::optional<int64_t> try_huge_pages(ThreadPool& pool);
inline constexpr int64_t kHugePageTrialBytes = int64_t{64} << 20;

}  // namespace tessera
