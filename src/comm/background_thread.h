#pragma once

#include <functional>
#include <thread>

namespace tessera {

// A thread that takes no signals: those are for the thread that handles them. It mostly waits and copies, and
// runs on spare_cpus(). Error(kBadConfig) when the system refuses it.
std::thread start_background_thread(std::function<void()> body);

}  // namespace tessera
