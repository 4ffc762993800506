// Giving large buffers their memory before they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "platform/thread_pool.h"

namespace tessera {

// Makes the system provide every page of `memory` now, whose contents stay as they are: page faults do not
// fall into the first step. Thread t of n takes the t-th of n consecutive shares, as loops over this memory
// will (ThreadPool::parallel_for), and the kernel places a page on the memory node of the thread that first
// touches it.
void prefault(ThreadPool& pool, std::span<std::byte> memory);

// The same for memory of a memfd that several processes map, and may use meanwhile: the blocks of 2 MiB that
// begin in [begin, end) of `memory`, so that processes with neighbouring ranges take each block once. Blocks
// become huge pages also where the system's shmem_enabled is "never" (MADV_COLLAPSE, Linux 6.1), unless it is
// "deny" or memory is fragmented; the other processes then map them as huge pages, too, where `memory` begins
// at a multiple of 2 MiB.
void prefault_shared(ThreadPool& pool, std::span<std::byte> memory, int64_t begin, int64_t end);

// How many bytes of the mapping that `address` lies in are huge pages now (AnonHugePages and
// ShmemPmdMapped of /proc/self/smaps); nothing when the kernel does not tell.
std::optional<int64_t> huge_page_bytes(const void* address);

}  // namespace tessera
