// Warnings about an input that is read several times.
#pragma once

#include <string>

namespace tessera {

// Logs the line unless this process has logged it before. Thread-safe.
void log_warning_once(const std::string& message);

}  // namespace tessera
