// Where the records of a watched run come from.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera {

class RunSource {
 public:
  struct News {
    bool restarted = false;  // earlier records no longer count
    std::vector<nlohmann::ordered_json> records;
  };

  virtual ~RunSource() = default;
  // The records since the last call, without waiting for any, except that the first call waits for existing
  // ones.
  virtual News poll() = 0;
  // Unix seconds of the run's last step; 0 = there was none.
  virtual double updated() const = 0;
  // The reason for waiting if there is no run yet: "out: no run has begun"; later, why nothing arrives; "" =
  // no problem.
  virtual std::string problem() const = 0;
};

// The output_dir of a run, which need not exist yet.
std::unique_ptr<RunSource> open_folder_source(const std::string& folder);

// The page of a run (--report_to dashboard): "http://host:9404", if need be with "?token=...". `token` is
// used if the address has none. Connects again when the connection is lost. `follows`: after the first call
// of poll(), too. Errors of the first poll(): kNoInput if there is no page of a run, kUsage for a wrong
// token, kIoError.
std::unique_ptr<RunSource> open_server_source(const std::string& url, const std::string& token, bool follows);

}  // namespace tessera
