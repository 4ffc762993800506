#pragma once

#include <functional>
#include <thread>

namespace tessera {

// Starts a thread with all signals blocked, so that they go to the thread that handles them. It mostly waits
// and copies, and runs on spare_cpus(). Error(kBadConfig) if the system refuses to create it.
std::thread start_background_thread(std::function<void()> body);

}  // namespace tessera
