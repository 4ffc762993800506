// The starting point of every end-to-end test: text, a tokenizer trained on it and a small random model, made
// by the program itself.
#pragma once

#include <string>

#include "e2e/process.h"

namespace tessera {

// Deterministic text of English-looking sentences, one per line.
std::string sample_text(int64_t num_lines, uint64_t seed = 1);

// A config.json with two layers and the given `vocab_size`.
std::string tiny_config(int64_t vocab_size);

struct TinyModel {
  TemporaryFolder folder;
  std::string text_file;
  std::string tokenizer;  // 320 tokens
  std::string model;

  TinyModel();
  // Arguments of a working training run; `more` is appended.
  std::vector<std::string> train_arguments(const std::string& output_dir,
                                           const std::vector<std::string>& more = {}) const;
};

// Runs tessera and expects exit code 0 with nothing refused.
ProcessResult run_well(const std::vector<std::string>& arguments, const StartOptions& options = {});

}  // namespace tessera
