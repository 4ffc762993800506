// For tests: reads TensorBoard's event files without the code that writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct TestEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  bool starts_session = false;
  // The summary, which has one value.
  std::string tag;
  std::string plugin;
  std::optional<float> value;
  std::optional<std::string> text;
};

// Throws std::runtime_error for a record whose length, checksums or message are not right.
std::vector<TestEvent> read_event_file(const std::filesystem::path& path);

}  // namespace tessera
