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

// How many bytes of the mapping that `address` lies in are huge pages now (AnonHugePages of
// /proc/self/smaps); nothing when the kernel does not tell.
std::optional<int64_t> huge_page_bytes(const void* address);

}  // namespace tessera
