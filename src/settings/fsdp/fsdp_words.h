// What --fsdp and --fsdp_config say: PyTorch's FSDP by the names of Transformers, accelerate and Axolotl.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera {

struct FsdpArguments {
  // --fsdp
  bool is_on = false;
  std::string strategy;  // a name of torch.distributed.fsdp.ShardingStrategy in lower case, "" = not given
  bool offloads = false;
  std::string words;  // as given
  // --fsdp_config: its keys without the prefix fsdp_, those that are null left out. Booleans are "true" or
  // "false", words in upper case, objects JSON.
  std::map<std::string, std::string> config;
  std::string config_file;  // "" = given inline
  std::vector<std::string> layer_classes;
  // Once applied: what decided zero_stage ("--fsdp full_shard"), and the flags that were set.
  std::string source;
  std::set<std::string, std::less<>> sets;
};

// Each checks every word, key and value. Error(kUsage) for one that is not known or is refused.
void read_fsdp_words(const std::vector<std::string>& values, FsdpArguments* out);
// A JSON object, or the name of a file with one.
void read_fsdp_config(const std::string& text, FsdpArguments* out);
// A name, or several separated by commas.
void add_layer_classes(const std::string& text, FsdpArguments* out);

// The stage of ZeRO that a strategy means.
const char* stage_of_strategy(const std::string& strategy);
// True for strategies that only FSDP1 has: its successor reshards after the forward pass, or does not.
bool needs_version_1(const std::string& strategy);

}  // namespace tessera
