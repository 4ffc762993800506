#include "bench/step/step_sample.h"

#include <algorithm>

namespace tessera {

std::vector<std::pair<std::string, double>> operation_shares(const std::map<std::string, double>& seconds,
                                                             double total) {
  std::vector<std::pair<std::string, double>> result;
  double rest = total;
  for (const auto& [name, value] : seconds) {
    result.emplace_back(name, value / total);
    rest -= value;
  }
  result.emplace_back("other", rest / total);
  std::sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return result;
}

AgainstOther against_other(const std::string& name, const std::vector<StepSample>& steps) {
  AgainstOther result;
  result.name = name;
  result.forward_backward_seconds =
      quartiles_of(steps, [](const StepSample& s) { return s.other_forward_backward; });
  result.optimizer_seconds = quartiles_of(steps, [](const StepSample& s) { return s.other_optimizer; });
  result.ratio_forward_backward = quartiles_of(
      steps, [](const StepSample& s) { return s.other_forward_backward / s.forward_backward(); });
  result.ratio_optimizer =
      quartiles_of(steps, [](const StepSample& s) { return s.other_optimizer / s.optimizer; });
  result.ratio_step = quartiles_of(steps, [](const StepSample& s) { return s.other_whole() / s.whole(); });
  return result;
}

void fill_statistics(const std::vector<StepSample>& steps, TrainStepLine* line) {
  const auto tokens = static_cast<double>(line->options.step_tokens());
  const auto statistic = [&](const auto& value) { return quartiles_of(steps, value); };
  line->rounds = static_cast<int64_t>(steps.size());
  line->step_seconds = statistic([](const StepSample& s) { return s.whole(); });
  line->forward_seconds = statistic([](const StepSample& s) { return s.forward; });
  line->head_seconds = statistic([](const StepSample& s) { return s.head; });
  line->backward_seconds = statistic([](const StepSample& s) { return s.backward; });
  line->optimizer_seconds = statistic([](const StepSample& s) { return s.optimizer; });
  line->tokens_per_second = statistic([&](const StepSample& s) { return tokens / s.whole(); });
  line->tokens_per_second_forward_backward =
      statistic([&](const StepSample& s) { return tokens / s.forward_backward(); });
  line->peak = statistic([](const StepSample& s) { return s.peak_tflops; });
  line->mfu = statistic([&](const StepSample& s) { return line->step_tflop / s.whole() / s.peak_tflops; });
  line->mfu_forward_backward =
      statistic([&](const StepSample& s) { return line->step_tflop / s.forward_backward() / s.peak_tflops; });
}

}  // namespace tessera
