#!/usr/bin/env bash
# tiny_model.sh TESSERA DIR: writes DIR/text.txt, DIR/tokenizer and DIR/model, a random model of 30 thousand parameters.
set -euo pipefail
mkdir -p "$2"
cd "$2"
awk 'BEGIN {
  srand(1)
  num_words = split("the model reads a weight from every small layer and token again before it writes", words, " ")
  for (line = 0; line < 400; ++line) {
    text = words[1 + int(num_words * rand())]
    for (i = 4 + int(8 * rand()); i > 0; --i) text = text " " words[1 + int(num_words * rand())]
    print text "."
  }
}' >text.txt
"$1" tokenizer train --input text.txt --vocab_size 300 --output tokenizer >tokenizer.log 2>&1
cat >config.json <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
 "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": true,
 "initializer_range": 0.02}
JSON
"$1" init --config config.json --tokenizer tokenizer --output model --dtype float32 >init.log 2>&1
