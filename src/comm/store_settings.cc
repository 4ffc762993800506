#include "comm/store_settings.h"

#include <fmt/format.h>

#include <cstdint>
#include <set>

#include "base/text.h"
#include "comm/store_wire.h"

namespace tessera {

std::string describe_difference(const std::map<std::string, std::string>& mine,
                                const std::map<std::string, std::string>& theirs, const std::string& me,
                                const std::string& them) {
  std::set<std::string> names;
  for (const auto& [name, value] : mine) names.insert(name);
  for (const auto& [name, value] : theirs) names.insert(name);
  const auto value_of = [](const std::map<std::string, std::string>& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("not set") : fmt::format("'{}'", printable(found->second));
  };
  std::string first;
  int64_t more = 0;
  for (const std::string& name : names) {
    const std::string a = value_of(mine, name);
    const std::string b = value_of(theirs, name);
    if (a == b) continue;
    if (first.empty()) {
      first = fmt::format("setting '{}' differs: {} for {}, {} for {}", printable(name), a, me, b, them);
    } else {
      ++more;
    }
  }
  if (more > 0) first += fmt::format(" (and {} more {})", more, more == 1 ? "setting" : "settings");
  return first;
}

std::string find_difference(StoreClient& store, const World& world, const std::string& prefix,
                            const std::map<std::string, std::string>& settings) {
  const std::chrono::milliseconds timeout = store.rendezvous_timeout();
  if (world.rank != 0) {
    store.set(fmt::format("{}{}", prefix, world.rank), wire::encode_settings(settings));
  } else {
    std::string difference;
    for (int rank = 1; rank < world.world_size && difference.empty(); ++rank) {
      const auto theirs = wire::decode_settings(store.get(fmt::format("{}{}", prefix, rank), timeout));
      difference = describe_difference(settings, theirs, describe_rank(0, store.hosts().at(0)),
                                       describe_rank(rank, store.hosts().at(static_cast<size_t>(rank))));
    }
    store.set(prefix + "difference", difference);
  }
  return store.get(prefix + "difference", timeout);
}

}  // namespace tessera
