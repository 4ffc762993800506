// An event file of TensorBoard: records in TFRecord framing (length, masked CRC32C of the length, data,
// masked CRC32C of the data), each a protobuf message `Event` of tensorflow/core/util/event.proto, encoded as
// torch.utils.tensorboard.SummaryWriter does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "report/files/append_file.h"

namespace tessera {

class EventFile {
 public:
  // Adds events.out.tfevents.TIME.HOST.PID.N to `folder`, which it creates. In a run that resumes,
  // `first_step` is the first step to come: TensorBoard discards data of earlier files of the folder from
  // that step on. Error(kIoError).
  explicit EventFile(const std::filesystem::path& folder, std::optional<int64_t> first_step = {});

  // Into memory until flush().
  void add_scalar(std::string_view tag, double value, int64_t step);
  // UTF-8; TensorBoard shows it as Markdown under the tag TAG/text_summary.
  void add_text(std::string_view tag, std::string_view text, int64_t step);
  // Records that cannot be written are left out and reported once as a warning.
  void flush();

 private:
  void add_event(int64_t step, int field, std::string_view content);

  AppendFile file_;
  std::string pending_;
};

}  // namespace tessera
