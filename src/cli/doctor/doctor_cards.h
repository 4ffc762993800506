// What `tessera doctor` says about NVIDIA cards.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster/check.h"
#include "platform/nvidia_cards.h"

namespace tessera {

// {"driver", "error", "cards": [...], "warnings": [...]}; null for what a card does not say.
nlohmann::ordered_json cards_json(const NvidiaCards& found, const std::vector<Check>& checks);

// Names and values, to be printed below each other; none without a card. `checks` are check_nvidia_cards().
std::vector<std::pair<std::string, std::string>> card_rows(const NvidiaCards& found,
                                                           const std::vector<Check>& checks);

}  // namespace tessera
