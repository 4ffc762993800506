// The heads of one attention layer, as attention, head norm and rotary embedding see them.
#pragma once

#include <cstdint>

namespace tessera {

// Token rows are [q: H heads | k: G heads | v: G heads], each head E wide.
struct AttentionShape {
  int64_t num_heads;            // H
  int64_t num_key_value_heads;  // G; H is a multiple of G, query head h reads key-value head h / (H / G)
  int64_t head_dim;             // E
  int64_t sliding_window;  // a query sees itself and the window - 1 positions before it; 0 = all before it
  float scale;             // scores are multiplied by this, 1/sqrt(E) in Llama
  float softcap = 0;       // c: the scores then become c tanh(score / c); 0: they stay as they are

  int64_t qkv_width() const { return (num_heads + 2 * num_key_value_heads) * head_dim; }
};

}  // namespace tessera
