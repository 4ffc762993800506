#include "forecast/instances/catalogue.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;
constexpr size_t kMaxInstances = 10'000;

// Firmware, the kernel and its page tables: an instance of 32 GiB shows 30 to 31 GiB to its processes.
constexpr double kUsableShare = 0.95;

// The share of a card's memory that a run sees. cudaMemGetInfo() on a new context shows 98.5 % (A100, 40 GiB)
// to 99.3 % (L40S) of what EC2 states, before the context and the kernels are loaded, which take up to half a
// GiB.
constexpr double kVisibleShareOfCard = 0.98;
constexpr int64_t kContextBytes = int64_t{512} << 20;

constexpr double kChannelBytes = 8;    // of a transfer
constexpr double kStreamShare = 0.75;  // of what the channels can do, that programs reach

// An object all of whose fields are known: a misspelt optional one would be ignored in silence.
JsonNode checked(const JsonNode& node, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : node.object().items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const NameHint hint = hint_for_name(key, {known.begin(), known.end()}, {}, {});
    fail(ExitCode::kBadData, "{}: expected one of {}, found the field '{}'{}", node.where(),
         fmt::join(known, ", "), printable(key), hint.text("", ""));
  }
  return node;
}

std::string text_of(const JsonNode& node) {
  const std::string& text = node.string();
  const auto is_plain = [](unsigned char c) { return c >= 0x20 && c < 0x7f; };
  if (text.empty() || text.size() > 100 || !std::ranges::all_of(text, is_plain)) {
    node.expected("1 to 100 printable ASCII characters");
  }
  return text;
}

// "2026-07-20".
std::string date_of(const JsonNode& node) {
  const std::string& date = node.string();
  bool is_date = date.size() == 10;
  for (size_t i = 0; is_date && i < date.size(); ++i) {
    is_date = i == 4 || i == 7 ? date[i] == '-' : date[i] >= '0' && date[i] <= '9';
  }
  if (!is_date) node.expected("a date such as 2026-07-20");
  return date;
}

void add_estimates(const JsonNode& node, const JsonNode& fields, std::vector<std::string>* estimates) {
  if (node.is_null()) return;
  for (const JsonNode& name : node.list()) {
    if (!fields.contains(name.string())) name.expected("the name of a field beside it");
    estimates->push_back(name.string());
  }
}

struct Processor {
  std::string name;
  InstanceFigures figures;  // num_cores and memory_gb_per_s are per socket
  int64_t threads_per_core = 1;
  int64_t numa_nodes = 1;  // of a socket
  double watts = 0;        // of a socket
  std::vector<std::string> estimates;
};

Processor read_processor(const JsonNode& all, const std::string& name) {
  const JsonNode node =
      checked(all[name], {"name", "instruction_set", "cores_per_socket", "numa_nodes_per_socket",
                          "threads_per_core", "clock_ghz", "product_clock_ghz", "memory_channels",
                          "memory_mt_per_s", "watts_per_socket", "unconfirmed"});
  Processor processor;
  processor.name = text_of(node["name"]);
  const std::string& isa = node["instruction_set"].string();
  InstanceFigures& figures = processor.figures;
  figures.amx = isa == "amx_bf16";
  figures.avx512_bf16 = figures.amx || isa == "avx512_bf16";
  figures.avx512 = figures.avx512_bf16 || isa == "avx512";
  if (!figures.avx512 && isa != "avx2") {
    node["instruction_set"].expected("amx_bf16, avx512_bf16, avx512 or avx2");
  }
  figures.num_cores = node["cores_per_socket"].integer(1, 1024);
  processor.numa_nodes = node["numa_nodes_per_socket"].integer(1, 64);
  processor.threads_per_core = node["threads_per_core"].integer(1, 2);
  const double clock_ghz = node["clock_ghz"].number_between(0.1, 10);
  figures.clock_ghz =
      node["product_clock_ghz"].is_null() ? clock_ghz : node["product_clock_ghz"].number_between(0.1, 10);
  figures.memory_gb_per_s = static_cast<double>(node["memory_channels"].integer(1, 64)) * kChannelBytes *
                            node["memory_mt_per_s"].number_between(100, 100'000) / 1000 * kStreamShare;
  if (!node["watts_per_socket"].is_null()) {
    processor.watts = node["watts_per_socket"].number_between(1, 10'000);
  }
  add_estimates(node["unconfirmed"], node, &processor.estimates);
  return processor;
}

Card read_card(const JsonNode& all, const std::string& name, std::vector<std::string>* estimates) {
  const JsonNode node = checked(
      all[name], {"name", "memory_mib", "bf16_tflops", "memory_gb_per_s", "wgmma", "sources", "unconfirmed"});
  Card card;
  card.name = text_of(node["name"]);
  card.memory_bytes = node["memory_mib"].integer(1024, 10'000'000) << 20;
  card.figures.bf16_tflops = node["bf16_tflops"].number_between(1, 100'000);
  card.figures.memory_gb_per_s = node["memory_gb_per_s"].number_between(10, 1'000'000);
  card.figures.has_wgmma = node["wgmma"].boolean_or(false);
  for (const JsonNode& source : node["sources"].list()) source.string();
  add_estimates(node["unconfirmed"], node, estimates);
  return card;
}

// Fields of a family that all its sizes share.
Instance read_family(const JsonNode& root, const JsonNode& node, const std::string& name,
                     const Processor& processor) {
  Instance shared;
  shared.family = name;
  shared.provider = text_of(node["provider"]);
  shared.region = text_of(node["region"]);
  shared.date = date_of(node["date"]);
  shared.processor = processor.name;
  shared.figures = processor.figures;
  shared.spot_share = node["spot_share"].is_null() ? 1 : node["spot_share"].number_between(0.01, 1);
  shared.estimates = processor.estimates;
  for (const JsonNode& source : node["sources"].list()) source.string();
  add_estimates(node["unconfirmed"], node, &shared.estimates);
  if (node["card"].is_null()) return shared;
  const std::string& card = node["card"].string();
  if (root["cards"].is_null() || !root["cards"].contains(card)) node["card"].expected("a name of 'cards'");
  shared.card = read_card(root["cards"], card, &shared.estimates);
  return shared;
}

Instance read_size(const JsonNode& any, const Instance& family, const Processor& processor) {
  const JsonNode node = checked(any, {"size", "vcpus", "memory_gib", "network_gbps", "burst_gbps",
                                      "efa_cards", "nvme_gb", "cards", "usd_per_hour", "unconfirmed"});
  Instance instance = family;
  instance.name = family.family + "." + text_of(node["size"]);
  instance.num_vcpus = node["vcpus"].integer(1, 8192);
  if (instance.num_vcpus % processor.threads_per_core != 0) {
    node["vcpus"].expected(fmt::format("a multiple of the {} threads per core of processor '{}'",
                                       processor.threads_per_core, processor.name));
  }
  InstanceFigures& figures = instance.figures;
  figures.num_cores = instance.num_vcpus / processor.threads_per_core;
  const double num_sockets =
      static_cast<double>(figures.num_cores) / static_cast<double>(processor.figures.num_cores);
  figures.memory_gb_per_s *= num_sockets;
  instance.watts = processor.watts * num_sockets;
  instance.num_numa_nodes = divide_up(figures.num_cores * processor.numa_nodes, processor.figures.num_cores);
  constexpr double kGib = int64_t{1} << 30;
  instance.memory_bytes =
      static_cast<int64_t>(std::llround(node["memory_gib"].number_between(0.1, 1 << 20) * kGib));
  figures.network_gbps = node["network_gbps"].number_between(0.001, 100'000);
  instance.burst_gbps = node["burst_gbps"].is_null()
                            ? figures.network_gbps
                            : node["burst_gbps"].number_between(figures.network_gbps, 100'000);
  if (!node["efa_cards"].is_null()) instance.num_efa_cards = node["efa_cards"].integer(0, 64);
  if (!node["nvme_gb"].is_null()) instance.nvme_gb = node["nvme_gb"].integer(0, 10'000'000);
  const bool has_cards = family.card.memory_bytes > 0;
  if (has_cards) instance.num_cards = node["cards"].integer(1, 64);
  if (!has_cards && !node["cards"].is_null()) node["cards"].expected("a family whose 'card' is named");
  // Some machines with cards are sold in blocks of days only.
  if (!has_cards || !node["usd_per_hour"].is_null()) {
    instance.usd_per_hour = node["usd_per_hour"].number_between(0.0001, 100'000);
  }
  add_estimates(node["unconfirmed"], node, &instance.estimates);
  return instance;
}

}  // namespace

int64_t Instance::usable_bytes() const {
  return static_cast<int64_t>(static_cast<double>(memory_bytes) * kUsableShare);
}

int64_t Card::usable_bytes() const {
  return static_cast<int64_t>(static_cast<double>(memory_bytes) * kVisibleShareOfCard) - kContextBytes;
}

std::vector<Instance> parse_catalogue(std::string_view json, const std::string& origin) {
  const Json document = parse_json(json, origin);
  const JsonNode root = checked({document, origin}, {"about", "processors", "cards", "families"});
  std::vector<Instance> instances;
  std::set<std::string> names;
  for (const auto& [family_name, unused] : root["families"].object().items()) {
    const JsonNode node = checked(
        root["families"][family_name],
        {"provider", "region", "date", "processor", "card", "spot_share", "unconfirmed", "sources", "sizes"});
    const std::string& processor_name = node["processor"].string();
    if (!root["processors"].contains(processor_name)) node["processor"].expected("a name of 'processors'");
    const Processor processor = read_processor(root["processors"], processor_name);
    const Instance family = read_family(root, node, family_name, processor);
    for (const JsonNode& size : node["sizes"].list()) {
      instances.push_back(read_size(size, family, processor));
      if (!names.insert(instances.back().name).second) size["size"].expected("a size that is listed once");
      if (instances.size() > kMaxInstances) {
        node["sizes"].expected(fmt::format("at most {} instance types in the file", kMaxInstances));
      }
    }
  }
  if (instances.empty()) root["families"].expected("at least one instance type");
  return instances;
}

std::vector<Instance> read_catalogue(const std::filesystem::path& path) {
  return parse_catalogue(read_text_file(path, kMaxFileBytes), path.string());
}

std::vector<Instance> shipped_catalogue() {
  return parse_catalogue(shipped_catalogue_json(), "the catalogue of the program");
}

std::vector<Instance> plan_catalogue(const std::string& path) {
  return path.empty() ? shipped_catalogue() : read_catalogue(path);
}

std::vector<Instance> without_cards(std::vector<Instance> catalogue) {
  std::erase_if(catalogue, [](const Instance& instance) { return instance.num_cards > 0; });
  return catalogue;
}

std::vector<Instance> with_cards(std::vector<Instance> catalogue) {
  std::erase_if(catalogue, [](const Instance& instance) { return instance.num_cards == 0; });
  return catalogue;
}

const Card* find_card(const std::vector<Instance>& catalogue, std::string_view name) {
  const auto words = [](std::string text) {
    std::ranges::replace(text, '-', ' ');
    std::istringstream stream(text);
    return std::set<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  const std::set<std::string> given = words(std::string(name));
  for (const Instance& instance : catalogue) {
    if (instance.num_cards > 0 && std::ranges::includes(given, words(instance.card.name)))
      return &instance.card;
  }
  return nullptr;
}

std::vector<Instance> select_instances(const std::vector<Instance>& catalogue,
                                       const std::vector<std::string>& patterns) {
  std::set<const Instance*> matches;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const Instance& instance : catalogue) {
      if (fnmatch(pattern.c_str(), instance.name.c_str(), 0) != 0) continue;
      any = true;
      matches.insert(&instance);
    }
    if (any) continue;
    std::set<std::string> families;
    for (const Instance& instance : catalogue) families.insert(instance.family);
    fail(ExitCode::kUsage,
         "--instances: expected instance types of the catalogue or patterns such as 'c7i.*', found '{}'; its "
         "families are {}",
         printable(pattern), fmt::join(families, ", "));
  }
  std::vector<Instance> selected;
  for (const Instance& instance : catalogue) {
    if (matches.contains(&instance)) selected.push_back(instance);
  }
  return selected;
}

// To a run on processors a card would cost money and do nothing.
std::vector<Instance> rentable_instances(std::vector<Instance> catalogue, bool on_cards,
                                         const std::vector<std::string>& patterns) {
  catalogue = on_cards ? with_cards(std::move(catalogue)) : without_cards(std::move(catalogue));
  // Some are sold in blocks of days only.
  std::erase_if(catalogue, [](const Instance& instance) { return instance.usd_per_hour == 0; });
  const bool all = patterns.empty() || patterns == std::vector<std::string>{"all"};
  return all ? catalogue : select_instances(catalogue, patterns);
}

}  // namespace tessera
