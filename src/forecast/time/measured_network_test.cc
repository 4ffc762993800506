#include "forecast/time/measured_network.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "io/file.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(MeasuredNetwork, IsTheTypicalLink) {
  const TestFolder folder;
  write_text_file(
      folder / "network.json",
      R"({"ok": true, "hosts": ["a", "b"], "typical": {"gbit_per_s": 9.25, "latency_us": 80.0}})");
  const MeasuredNetwork network = read_measured_network(folder / "network.json");
  EXPECT_EQ(network.gbit_per_s, 9.25);
  EXPECT_DOUBLE_EQ(network.latency_s, 80e-6);
}

TEST(MeasuredNetwork, OtherFilesAreRefused) {
  const TestFolder folder;
  const auto refused = [&](const char* text, std::vector<std::string> words) {
    write_text_file(folder / "network.json", text);
    words.push_back("network.json");
    expect_error(ExitCode::kBadData, words, [&] { read_measured_network(folder / "network.json"); });
  };
  refused("[]", {"expected an object"});
  refused("{}", {"typical.gbit_per_s", "found nothing"});
  refused(R"({"typical": {"gbit_per_s": 0, "latency_us": 80}})", {"a number from", "found 0"});
  refused(R"({"typical": {"gbit_per_s": 9, "latency_us": "fast"}})", {"typical.latency_us"});
  refused("{", {"not valid JSON"});
  expect_error(ExitCode::kNoInput, {"missing.json"}, [&] { read_measured_network(folder / "missing.json"); });
}

}  // namespace
}  // namespace tessera
