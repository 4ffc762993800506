#include <filesystem>

#include "io/followed_file.h"
#include "monitor/watch/run_source.h"

namespace tessera {
namespace {

// A line of metrics.jsonl is below 1 KB, with hundreds of ranks about 10 KB: more steps than the trend needs.
constexpr int64_t kMetricsTailBytes = 1 << 20;

class FolderSource : public RunSource {
 public:
  explicit FolderSource(const std::filesystem::path& folder)
      : folder_(folder),
        events_(folder / "events.jsonl"),
        metrics_(folder / "metrics.jsonl", kMetricsTailBytes) {}

  News poll() override {
    FollowedFile::News events = events_.read_news();
    FollowedFile::News metrics = metrics_.read_news();
    News news;
    news.restarted = events.restarted || metrics.restarted;
    if (news.restarted) {
      // The one that was not cut has to be read again as well.
      if (!events.restarted) events = reread(&events_);
      if (!metrics.restarted) metrics = reread(&metrics_);
    }
    for (const FollowedFile::News* file : {&events, &metrics}) {
      for (const std::string& line : file->lines)
        news.records.push_back(nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false));
    }
    return news;
  }

  double updated() const override { return metrics_.is_there() ? metrics_.modified() : 0; }

  std::string problem() const override {
    return events_.is_there() || metrics_.is_there() ? "" : folder_.string() + ": no run has begun";
  }

 private:
  static FollowedFile::News reread(FollowedFile* file) {
    file->rewind();
    return file->read_news();
  }

  std::filesystem::path folder_;
  FollowedFile events_, metrics_;
};

}  // namespace

std::unique_ptr<RunSource> open_folder_source(const std::string& folder) {
  return std::make_unique<FolderSource>(folder);
}

}  // namespace tessera
