#include "forecast/time/measured_network.h"

#include <string>

#include "formats/json.h"
#include "io/file.h"

namespace tessera {

MeasuredNetwork read_measured_network(const std::filesystem::path& file) {
  const std::string origin = file.string();
  const Json document = parse_json(read_text_file(file), origin);
  const JsonNode typical = JsonNode(document, origin)["typical"];
  return {typical["gbit_per_s"].number_between(1e-3, 1e6),
          typical["latency_us"].number_between(1e-3, 1e9) * 1e-6};
}

}  // namespace tessera
