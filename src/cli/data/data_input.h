// The flags and files that `data preview` and `data stats` share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "data/row_plan.h"
#include "settings/choices.h"
#include "settings/run/data_settings.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct DataInput {
  std::string model;
  std::string tokenizer;
  std::vector<std::string> dataset;
  std::optional<int64_t> max_length;
  bool packing = false;
  PackingStrategy packing_strategy = PackingStrategy::kAuto;
  bool packing_cross_document_attention = false;
  DataArguments data;

  void declare_flags(FlagTable* table);
};

// The files of a dataset, and what turns them into token ids.
struct OpenData {
  DatasetOptions options;
  RowPlan plan;
  std::optional<Tokenizer> tokenizer;
  int64_t vocab_size;
  int64_t max_length;  // that training would use
  Packing packing;     // of the rows, if they are packed
};

// Logs what the plan of the rows remarks. Error(kUsage) if there is neither a model nor a tokenizer.
OpenData open_data(const DataInput& input);

}  // namespace tessera
