// The operations of a training step, from a walk through the real model: its forward and backward pass run on
// Ops that compute nothing, in memory that has only addresses. So recomputation by checkpointing, chunks of
// the head, merged micro-batches and packed weights are counted as they happen.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/function_ref.h"
#include "forecast/time/op_work.h"
#include "formats/huggingface/model_config.h"
#include "model/parameters.h"
#include "tensor/packed_batch.h"

namespace tessera {

// One pass of a rank.
struct PassShape {
  int64_t rows = 1;
  int64_t row_tokens = 1024;  // of each
  bool gradient_checkpointing = false;
  int64_t num_kept_outputs = 0;  // ActivationLimits::num_kept_outputs
  bool pack_weights = false;
  bool adds = false;         // to gradients, rather than overwriting them
  bool squares = false;      // the products also sum the squares of the gradients
  int64_t context_size = 1;  // ranks that share the rows: the work is one's

  int64_t num_tokens() const { return rows * row_tokens; }
  auto operator<=>(const PassShape&) const = default;
};

// Rows of random tokens; every token except the first of a row is a target. With sources a row is a pair of
// sequences: half of its tokens are the source's, rounded up.
PackedBatch random_batch(const PassShape& shape, int64_t vocab_size, bool with_sources);

struct CountedWork {
  OpWork work;
  int64_t count = 0;
};

struct PassWork {
  std::vector<CountedWork> forward;   // up to the last layer
  std::vector<CountedWork> backward;  // head and loss included
  std::vector<CountedWork> packing;   // of all weights, once; empty without pack_weights
};

// Where a walk is: the parameter group whose weights were opened last, and in which direction.
struct WalkPosition {
  int64_t group = 0;
  bool is_forward = true;
};

// Calls visit(call, position) for every operation of the pass, in order. Nothing is computed.
void walk_pass(const ModelConfig& config, DType dtype, const PassShape& shape,
               FunctionRef<void(const OpCall& call, const WalkPosition& position)> visit);

// Walks through one model, each remembered: a walk takes milliseconds, looking it up nothing.
class StepWalks {
 public:
  StepWalks(const ModelConfig& config, DType dtype);

  const ModelConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  const ParameterLayout& layout() const { return layout_; }
  const PassWork& pass(const PassShape& shape);

 private:
  ModelConfig config_;
  DType dtype_;
  ParameterLayout layout_;
  std::map<PassShape, PassWork> passes_;
};

}  // namespace tessera
