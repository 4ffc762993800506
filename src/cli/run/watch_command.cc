#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/terminal/closing_table.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "monitor/watch/run_source.h"
#include "monitor/watch/watched_run.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{500};
// Lines about what happened before it began to watch.
constexpr size_t kMaxOldNews = 5;

// HOST:PORT, with or without a path, as others take it for an address.
bool is_address_without_scheme(const std::string& text) {
  const std::string authority = text.substr(0, text.find('/'));
  const size_t colon = authority.rfind(':');
  if (colon == authority.npos || colon == 0 || colon + 1 == authority.size()) return false;
  return authority.find_first_not_of("0123456789", colon + 1) == authority.npos;
}

class WatchCommand : public Command {
 public:
  std::string name() const override { return "watch"; }

  void declare_flags(FlagTable* table) override {
    declare(table, "run", &run_);
    declare(table, "token", &token_);
    declare(table, "once", &once_);
    declare(table, "json", &json_);
  }

  void run(FlagTable*) override {
    const bool is_url = run_.starts_with("http://") || run_.starts_with("https://");
    std::error_code ignored;
    if (!is_url && is_address_without_scheme(run_) && !std::filesystem::exists(run_, ignored)) {
      fail(ExitCode::kUsage, "{}: no such folder; the page of a run is http://{}", printable(run_, 200),
           printable(run_, 200));
    }
    if (token_.empty() && std::getenv("TESSERA_METRICS_TOKEN") != nullptr)
      token_ = std::getenv("TESSERA_METRICS_TOKEN");
    source_ = is_url ? open_server_source(run_, token_, !once_) : open_folder_source(run_);
    bool is_first = true;
    for (;;) {
      const bool has_changed = look();
      if (once_ && !watched_.has_begun())
        fail(ExitCode::kNoInput, "{}: no run has begun", printable(run_, 200));
      if (json_) {
        if (has_changed || is_first) print("{}\n", watched_.json(age_s()).dump());
        flush_output();
      } else {
        show(is_first);
      }
      if (once_ || watched_.has_finished()) break;
      is_first = false;
      std::this_thread::sleep_for(kBetweenLooks);
    }
    const std::optional<TrainSummary> summary = watched_.summary();
    if (json_ || !summary) return;
    print("{}",
          closing_table(*summary, {.num_ranks = watched_.num_ranks(), .num_nodes = watched_.num_nodes()},
                        std::min(terminal_width(), kMaxLineColumns)));
  }

 private:
  bool look() {
    const RunSource::News news = source_->poll();
    if (news.restarted) watched_.restart();
    for (const auto& record : news.records) watched_.add(record);
    return news.restarted || !news.records.empty();
  }

  double age_s() const {
    return source_->updated() > 0 ? std::max(0.0, unix_seconds() - source_->updated()) : 0;
  }

  void show(bool is_first) {
    std::vector<std::string> news = watched_.take_news();
    if (is_first && news.size() > kMaxOldNews)
      news.erase(news.begin(), news.end() - static_cast<std::ptrdiff_t>(kMaxOldNews));
    for (const std::string& line : news) print("{}\n", line);
    flush_output();
    const RunProgress progress = watched_.progress(age_s());
    if (error_shows_status() && !once_) {
      const std::string problem = source_->problem();
      status_.show(!problem.empty()          ? problem
                   : progress.step == 0      ? run_ + ": before the first step"
                   : watched_.has_finished() ? ""
                                             : progress_line(progress, terminal_style()));
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool is_due = once_ || watched_.has_finished() || now - last_line_ >= kPlainLineInterval;
    if (!is_due || progress.step == 0 || (progress.step == last_step_ && progress.activity.empty())) return;
    last_line_ = now;
    last_step_ = progress.step;
    print("{}\n", plain_progress_line(progress));
    flush_output();
  }

  std::string run_, token_;
  bool once_ = false, json_ = false;
  std::unique_ptr<RunSource> source_;
  WatchedRun watched_;
  StatusLine status_;
  std::chrono::steady_clock::time_point last_line_;
  int64_t last_step_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_watch_command() { return std::make_unique<WatchCommand>(); }

}  // namespace tessera
