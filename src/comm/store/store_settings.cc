#include "comm/store/store_settings.h"

#include <fmt/format.h>

#include <cstdint>
#include <set>

#include "base/text.h"
#include "comm/store/store_wire.h"

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
  const auto name_of = [&](int rank) {
    return describe_rank(rank, store.hosts().at(static_cast<size_t>(rank)));
  };
  const auto value_of = [&](int rank, const std::string& key, const char* what) {
    const std::string evidence =
        fmt::format("{} has not {} within {:.3g} s of {}", name_of(rank), what,
                    std::chrono::duration<double>(timeout).count(), name_of(world.rank));
    return store.failures().blame_at_deadline(rank, evidence, [&] { return store.get(key, timeout); });
  };
  if (world.rank != 0) {
    store.set(fmt::format("{}{}", prefix, world.rank), wire::encode(settings));
  } else {
    std::string difference;
    for (int rank = 1; rank < world.world_size && difference.empty(); ++rank) {
      const auto theirs = wire::decode<wire::Settings>(
          value_of(rank, fmt::format("{}{}", prefix, rank), "reported its settings"));
      difference = describe_difference(settings, theirs, name_of(0), name_of(rank));
    }
    store.set(prefix + "difference", difference);
  }
  return value_of(0, prefix + "difference", "compared the settings of all ranks");
}

}  // namespace tessera
