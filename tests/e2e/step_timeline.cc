#include "e2e/step_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

namespace tessera {
namespace {

using Clock = StepTimeline::Clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Clock::time_point begin_of(const StepTimeline::Step& step) {
  return step.end - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(step.seconds));
}

// The last complete line of the file; nullopt if there is none.
std::optional<std::string> last_line(const std::filesystem::path& path, std::uintmax_t size) {
  constexpr std::uintmax_t kLongestLine = 4096;
  const std::uintmax_t begin = size - std::min(size, kLongestLine);
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(begin));
  std::string tail(static_cast<size_t>(size - begin), '\0');
  in.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  tail.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  const size_t end = tail.rfind('\n');
  if (end == std::string::npos) return std::nullopt;
  const size_t before = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
  return tail.substr(before == std::string::npos ? 0 : before + 1, end - (before + 1));
}

}  // namespace

void StepTimeline::look() {
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(metrics_, ignored);
  if (ignored || size == seen_bytes_) return;
  const Clock::time_point now = Clock::now();
  const std::optional<std::string> line = last_line(metrics_, size);
  Step last;
  if (line) {
    const nlohmann::json metrics = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!metrics.is_object()) return;  // truncated during the read: seen by the next look()
    last = {metrics.value("step", 0), now, metrics.value("step_time_s", 0.0),
            metrics.value("checkpoint_stall_s", 0.0), metrics.value("checkpoint_write_s", 0.0)};
  }
  const bool is_cut = size < seen_bytes_;
  seen_bytes_ = size;
  while (!counting_.empty() && counting_.back().step > last.step) {
    undone_.push_back(counting_.back());
    counting_.pop_back();
  }
  if (is_cut || last.step == last_step()) return;
  counting_.push_back(last);
}

std::vector<StepTimeline::Step> StepTimeline::all() const {
  std::vector<Step> steps = counting_;
  steps.insert(steps.end(), undone_.begin(), undone_.end());
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.end < b.end; });
  return steps;
}

TimeUse time_use(const StepTimeline& timeline, const std::vector<Kill>& kills, Clock::time_point begin,
                 Clock::time_point end) {
  TimeUse use;
  use.wall_s = seconds_between(begin, end);
  const auto add_those_in_time = [&](const std::vector<StepTimeline::Step>& steps, double* sum) {
    for (const StepTimeline::Step& step : steps) {
      if (step.end > begin && step.end <= end) *sum += step.seconds;
    }
  };
  add_those_in_time(timeline.counting(), &use.useful_s);
  add_those_in_time(timeline.undone(), &use.redone_s);
  const std::vector<StepTimeline::Step> steps = timeline.all();
  for (const Kill& kill : kills) {
    const auto after = std::find_if(steps.begin(), steps.end(), [&](const StepTimeline::Step& step) {
      return begin_of(step) >= kill.ranks_ended;
    });
    const auto last = std::find_if(steps.rbegin(), steps.rend(), [&](const StepTimeline::Step& step) {
      return step.end <= kill.ranks_ended;
    });
    const Clock::time_point unfinished = last == steps.rend() ? begin : std::max(begin, last->end);
    use.cut_off_s += std::max(0.0, seconds_between(unfinished, kill.at));
    use.ending_s += seconds_between(kill.at, kill.ranks_ended);
    use.starting_s += seconds_between(kill.ranks_ended, after == steps.end() ? end : begin_of(*after));
  }
  use.between_steps_s =
      use.wall_s - use.useful_s - use.redone_s - use.cut_off_s - use.ending_s - use.starting_s;
  return use;
}

std::string TimeUse::table() const {
  std::string text;
  const auto add = [&](const char* what, double seconds) {
    text += fmt::format("  {:<44}{:8.2f} s {:6.1f} %\n", what, seconds, 100 * seconds / wall_s);
  };
  add("steps that count (ETTR)", useful_s);
  add("finished steps done again", redone_s);
  add("cut off by the kills", cut_off_s);
  add("from the kills until all ranks had ended", ending_s);
  add("from there until the first step began", starting_s);
  add("between steps: checkpoints begun, logs", between_steps_s);
  return text;
}

int steps_between_checkpoints(double step_s, double stall_s, double write_s, double failure_s) {
  const double interval_s = std::max(write_s, std::sqrt(2 * stall_s * failure_s));
  return std::max(1, static_cast<int>(std::ceil(interval_s / step_s)));
}

}  // namespace tessera
