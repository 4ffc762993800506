// Writes tests/data/chats.parquet: small sums as conversations, for the guide.
//   npm install @duckdb/node-api@1.5
//   node make_chats.mjs chats.parquet
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { DuckDBInstance } from "@duckdb/node-api";

const words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
const rows = [];
for (let a = 0; a <= 9; ++a) {
  for (let b = 0; a + b <= 10; ++b) {
    const messages = [
      { role: "user", content: `How much is ${words[a]} and ${words[b]}?` },
      { role: "assistant", content: `That is ${words[a + b]}.` },
    ];
    if ((a + b) % 3 === 0) {
      messages.unshift({ role: "system", content: "Answer with a number." });
      messages.push({ role: "user", content: "And one more?" });
      messages.push({ role: "assistant", content: a + b < 10 ? `That is ${words[a + b + 1]}.` : "That is eleven." });
    }
    rows.push({ messages, source: "sums" });
  }
}
const json = path.join(os.tmpdir(), "chats.jsonl");
fs.writeFileSync(json, rows.map((row) => JSON.stringify(row) + "\n").join(""));
const duckdb = await (await DuckDBInstance.create(":memory:")).connect();
await duckdb.run(`copy (from read_json('${json}', format = 'newline_delimited'))
  to '${process.argv[2]}' (format parquet, compression zstd)`);
