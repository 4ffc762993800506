// Prints a config.json: a small model for a tokenizer, with the fields given. Usage: node config.mjs TOKENIZER JSON
import fs from "node:fs";
import path from "node:path";

const [folder, fields] = process.argv.slice(2);
const tokenizer = JSON.parse(fs.readFileSync(path.join(folder, "tokenizer.json"), "utf8"));
const ids = [...Object.values(tokenizer.model.vocab), ...tokenizer.added_tokens.map((token) => token.id)];
const config = {
  model_type: "llama",
  hidden_act: "silu",
  // More than the tokenizer has, as published models often do.
  vocab_size: ids.reduce((a, b) => Math.max(a, b), 0) + 1 + 7,
  hidden_size: 96,
  intermediate_size: 160,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 32,
  max_position_embeddings: 512,
  rms_norm_eps: 1e-5,
  rope_theta: 10000,
  initializer_range: 0.3,
  tie_word_embeddings: false,
};
console.log(JSON.stringify({ ...config, ...JSON.parse(fields) }));
