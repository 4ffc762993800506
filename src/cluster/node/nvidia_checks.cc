#include "cluster/node/nvidia_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/text.h"

namespace tessera {
namespace {

std::string card_name(const NvidiaCard& card) {
  return card.name.empty() ? fmt::format("card {}", card.index)
                           : fmt::format("card {} ({})", card.index, card.name);
}

Check check_card_answers(const NvidiaCards& found, int64_t num_wanted) {
  if (!found.error.empty()) {
    return {.name = "gpu",
            .outcome = CheckOutcome::kFailed,
            .message = fmt::format("the NVIDIA driver does not answer: {}", found.error)};
  }
  if (std::ssize(found.cards) < num_wanted) {
    return {.name = "gpu",
            .outcome = CheckOutcome::kFailed,
            .message = fmt::format("{} of {} found: restart or replace the node", found.cards.size(),
                                   count_of(num_wanted, "NVIDIA card"))};
  }
  std::vector<std::string> lost;
  for (const NvidiaCard& card : found.cards) {
    if (!card.error.empty()) lost.push_back(fmt::format("{}: {}", card_name(card), card.error));
  }
  return at_most("gpu", static_cast<double>(lost.size()), 0, "cards",
                 lost.empty() ? fmt::format("{}, driver {}", count_of(std::ssize(found.cards), "NVIDIA card"),
                                            found.driver)
                              : fmt::format("{}: restart or replace the node", fmt::join(lost, "; ")));
}

uint64_t limits_before(const NvidiaCards& before, int64_t index) {
  const auto found = std::ranges::find(before.cards, index, &NvidiaCard::index);
  return found == before.cards.end() ? 0 : found->clock_limits.value_or(0);
}

Check check_card_clocks(const NvidiaCards& before, const NvidiaCards& after) {
  std::vector<std::string> throttled;
  bool is_known = false;
  for (const NvidiaCard& card : after.cards) {
    is_known |= card.clock_limits.has_value();
    const uint64_t lasting = card.clock_limits.value_or(0) & limits_before(before, card.index);
    std::vector<std::string> reasons;
    for (const ClockLimitInfo& info : all_clock_limits()) {
      if (!info.is_fault || (lasting & static_cast<uint64_t>(info.limit)) == 0) continue;
      reasons.emplace_back(info.name);
      std::ranges::replace(reasons.back(), '_', ' ');
    }
    if (reasons.empty()) continue;
    throttled.push_back(fmt::format(
        "{}: {}{}", card_name(card), fmt::join(reasons, ", "),
        card.temperature_celsius ? fmt::format(", {} degrees Celsius", *card.temperature_celsius) : ""));
  }
  if (!is_known) return skipped("gpu_throttling", "the cards do not say");
  return at_most("gpu_throttling", static_cast<double>(throttled.size()), 0, "cards",
                 throttled.empty()
                     ? "no card is slowed down by heat or the power supply"
                     : fmt::format("slowed down: {}: check cooling and power, or replace the node",
                                   fmt::join(throttled, "; ")));
}

Check check_card_memory(const NvidiaCards& found) {
  std::vector<std::string> bad;
  int64_t num_counting = 0, corrected = 0, uncorrected = 0;
  for (const NvidiaCard& card : found.cards) {
    corrected += card.corrected_errors.value_or(0);
    if (!card.uncorrected_errors) continue;
    ++num_counting;
    uncorrected += *card.uncorrected_errors;
    if (*card.uncorrected_errors > 0) bad.push_back(card_name(card));
  }
  if (num_counting == 0) return skipped("gpu_memory_errors", "no card has ECC enabled");
  return at_most(
      "gpu_memory_errors", static_cast<double>(uncorrected), 0, "errors",
      bad.empty() ? fmt::format("no uncorrected ECC errors on {}, {} corrected",
                                count_of(num_counting, "card"), format_count(corrected))
                  : fmt::format("{} on {}: reset the card with nvidia-smi --gpu-reset, or replace the node",
                                count_of(uncorrected, "uncorrected ECC error"), fmt::join(bad, ", ")));
}

// A link saves power by a lower generation while its card is idle.
bool is_at_work(const NvidiaCard& card) {
  return card.utilization.value_or(0) > 0 && !card.has(ClockLimit::kIdle);
}

Check check_card_links(const NvidiaCards& found) {
  std::vector<std::string> slow;
  int64_t num_known = 0;
  for (const NvidiaCard& card : found.cards) {
    if (!card.link_width || !card.max_link_width) continue;
    ++num_known;
    if (*card.link_width < *card.max_link_width) {
      slow.push_back(
          fmt::format("{}: {} of {} PCIe lanes", card_name(card), *card.link_width, *card.max_link_width));
    } else if (is_at_work(card) && card.link_generation && card.max_link_generation &&
               *card.link_generation < *card.max_link_generation) {
      slow.push_back(fmt::format("{}: PCIe generation {} of {}", card_name(card), *card.link_generation,
                                 *card.max_link_generation));
    }
  }
  if (num_known == 0) return skipped("gpu_link", "the cards do not say");
  Check check = at_most("gpu_link", static_cast<double>(slow.size()), 0, "cards",
                        slow.empty() ? "every PCIe link has all its lanes"
                                     : fmt::format("{}: reseat the card, or check its slot and the BIOS",
                                                   fmt::join(slow, "; ")));
  if (!slow.empty()) check.outcome = CheckOutcome::kAdvice;
  return check;
}

}  // namespace

std::vector<Check> check_nvidia_cards(const NvidiaCards& before, const NvidiaCards& after,
                                      int64_t num_wanted) {
  if (after.is_empty() && num_wanted == 0) return {};
  std::vector<Check> checks = {check_card_answers(after, num_wanted)};
  if (after.cards.empty()) return checks;
  checks.push_back(check_card_clocks(before, after));
  checks.push_back(check_card_memory(after));
  checks.push_back(check_card_links(after));
  return checks;
}

}  // namespace tessera
