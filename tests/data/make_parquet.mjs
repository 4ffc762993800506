// Writes tests/data/parquet with other programs' Parquet writers: each file NAME.parquet with the rows that it
// holds in NAME.expected.jsonl, one JSON object a line.
//   npm install apache-arrow@21 parquet-wasm@0.8 @duckdb/node-api@1.5 hyparquet-writer @dsnp/parquetjs
//   git clone https://github.com/apache/parquet-testing
//   node make_parquet.mjs parquet parquet-testing/data
import fs from "node:fs";
import { createRequire } from "node:module";
import * as arrow from "apache-arrow";
import { DuckDBInstance } from "@duckdb/node-api";
import { parquetWriteBuffer } from "hyparquet-writer";

const require = createRequire(import.meta.url);
const wasm = require("parquet-wasm/node");
const parquetjs = require("@dsnp/parquetjs");
const [, , folder, apacheFolder] = process.argv;

let state = 1;
const below = (n) => ((state = (Math.imul(state, 1103515245) + 12345) >>> 0) >>> 8) % n;
const words = ["alpha", "beta ½", "delta 한국어", "line\n", "", 'a "quote"', "🙂", "theta and a longer text"];
const word = () => words[below(words.length)];
const text = (n) => Array.from({ length: below(n) }, word).join(" ");
const maybe = (make) => (below(4) === 0 ? null : make());
const list = (n, make) => Array.from({ length: below(n) }, make);
const part = () => ({ type: "text", text: maybe(word) });

const makeRow = (_, i) => ({
  id: i * 3 - 7,
  text: text(8),
  category: ["red", "green", "blue"][below(3)],
  int32: below(1 << 20) - (1 << 19),
  uint32: 4294967295 - below(9),
  float64: maybe(() => below(1e6) / 64),
  ok: maybe(() => below(2) === 1),
  empty: null,
  tags: maybe(() => list(4, () => maybe(word))),
  messages: maybe(() => list(4, () => maybe(() => ({ role: word(), content: maybe(() => text(4)) })))),
  nested: maybe(() => ({
    lists: list(3, () => maybe(() => list(3, () => below(100)))),
    parts: list(3, () => ({ who: word(), parts: maybe(() => list(3, part)) })),
  })),
});
const rows = Array.from({ length: 40 }, makeRow);

function save(name, bytes, expected) {
  if (bytes) fs.writeFileSync(`${folder}/${name}.parquet`, bytes);
  const lines = expected.map((row) => (typeof row === "string" ? row : JSON.stringify(row)));
  fs.writeFileSync(`${folder}/${name}.expected.jsonl`, lines.map((line) => line + "\n").join(""));
}
const only = (columns) => rows.map((row) => Object.fromEntries(columns.map((name) => [name, row[name]])));

// parquet-rs, the library of Polars and DataFusion.
const field = (name, type) => new arrow.Field(name, type, true);
const struct = (fields) => new arrow.Struct(Object.entries(fields).map(([name, type]) => field(name, type)));
const listOf = (type) => new arrow.List(field("item", type));
const utf8 = new arrow.Utf8();
const types = {
  id: new arrow.Int64(),
  text: utf8,
  category: utf8,
  int32: new arrow.Int32(),
  uint32: new arrow.Uint32(),
  float64: new arrow.Float64(),
  ok: new arrow.Bool(),
  empty: utf8,
  tags: listOf(utf8),
  messages: listOf(struct({ role: utf8, content: utf8 })),
  nested: struct({
    lists: listOf(listOf(new arrow.Int32())),
    parts: listOf(struct({ who: utf8, parts: listOf(struct({ type: utf8, text: utf8 })) })),
  }),
};
function parquetRs(name, columns, configure) {
  const value = (row, column) => (column === "id" ? BigInt(row[column]) : row[column]);
  const vectors = columns.map((column) => [
    column,
    arrow.vectorFromArray(
      rows.map((row) => value(row, column)),
      types[column],
    ),
  ]);
  const table = wasm.Table.fromIPCStream(
    arrow.tableToIPC(new arrow.Table(Object.fromEntries(vectors)), "stream"),
  );
  const builder = new wasm.WriterPropertiesBuilder()
    .setDataPageSizeLimit(200)
    .setWriteBatchSize(4)
    .setMaxRowGroupSize(25);
  save(name, wasm.writeParquet(table, configure(builder).build()), only(columns));
}
const { Compression, Encoding, WriterVersion } = wasm;
const all = Object.keys(types);
parquetRs("rust-brotli-v2", all, (b) =>
  b.setCompression(Compression.BROTLI).setWriterVersion(WriterVersion.V2),
);
parquetRs("rust-lz4-raw", all, (b) => b.setCompression(Compression.LZ4_RAW).setDictionaryEnabled(false));
parquetRs("rust-zstd-fallback", all, (b) =>
  b.setCompression(Compression.ZSTD).setDictionaryPageSizeLimit(100),
);
const encoded = (encoding) => (b) =>
  b.setDictionaryEnabled(false).setEncoding(encoding).setCompression(Compression.GZIP);
parquetRs("rust-delta-byte-array", ["text", "category", "empty"], encoded(Encoding.DELTA_BYTE_ARRAY));
parquetRs(
  "rust-delta-length-byte-array",
  ["text", "category", "empty"],
  encoded(Encoding.DELTA_LENGTH_BYTE_ARRAY),
);
parquetRs("rust-delta-binary-packed", ["id", "int32", "uint32"], encoded(Encoding.DELTA_BINARY_PACKED));
parquetRs("rust-byte-stream-split", ["id", "int32", "float64"], encoded(Encoding.BYTE_STREAM_SPLIT));

// DuckDB.
const duckdb = await (await DuckDBInstance.create(":memory:")).connect();
fs.writeFileSync(`${folder}/rows.jsonl`, rows.map((row) => JSON.stringify(row) + "\n").join(""));
const duckdbTypes =
  "id: 'BIGINT', text: 'VARCHAR', category: 'VARCHAR', int32: 'INTEGER', uint32: 'UINTEGER', float64: 'DOUBLE', ok: 'BOOLEAN', empty: 'VARCHAR', tags: 'VARCHAR[]', messages: 'STRUCT(role VARCHAR, content VARCHAR)[]', nested: 'STRUCT(lists INTEGER[][], parts STRUCT(who VARCHAR, parts STRUCT(type VARCHAR, text VARCHAR)[])[])'";
await duckdb.run(
  `create table t as from read_json('${folder}/rows.jsonl', format = 'newline_delimited', columns = {${duckdbTypes}})`,
);
for (const [name, options] of [
  ["duckdb-snappy", "compression snappy"],
  ["duckdb-zstd-v2", "compression zstd, parquet_version V2, dictionary_size_limit 1"],
]) {
  await duckdb.run(`copy t to '${folder}/${name}.parquet' (format parquet, ${options})`);
  save(name, null, rows);
}
fs.unlinkSync(`${folder}/rows.jsonl`);

// hyparquet-writer.
const flat = [
  ["id", "INT64", "DELTA_BINARY_PACKED"],
  ["text", "STRING"],
  ["category", "STRING"],
  ["float64", "DOUBLE"],
  ["ok", "BOOLEAN", "RLE"],
];
const columnData = flat.map(([name, type, encoding]) => ({
  name,
  type,
  encoding,
  nullable: true,
  data: rows.map((row) => (name === "id" ? BigInt(row.id) : row[name])),
}));
save(
  "hyparquet-writer",
  Buffer.from(parquetWriteBuffer({ columnData, rowGroupSize: 15 })),
  only(flat.map(([name]) => name)),
);

// parquetjs writes repeated fields without LIST.
for (const useDataPageV2 of [false, true]) {
  const name = `parquetjs-${useDataPageV2 ? "v2" : "v1"}`;
  const string = { type: "UTF8", compression: "SNAPPY" };
  const schema = new parquetjs.ParquetSchema({
    id: { type: "INT64" },
    text: string,
    float64: { type: "DOUBLE", optional: true },
    tags: { ...string, repeated: true },
    messages: { repeated: true, fields: { role: string, content: { ...string, optional: true } } },
  });
  const expected = rows.map((row) => ({
    id: row.id,
    text: row.text,
    float64: row.float64,
    tags: (row.tags ?? []).map((tag) => tag ?? ""),
    messages: (row.messages ?? []).map((message) => message ?? { role: "none", content: null }),
  }));
  const writer = await parquetjs.ParquetWriter.openFile(schema, `${folder}/${name}.parquet`, {
    useDataPageV2,
    rowGroupSize: 15,
  });
  for (const row of expected)
    await writer.appendRow(JSON.parse(JSON.stringify(row), (_, value) => value ?? undefined));
  await writer.close();
  save(name, null, expected);
}

// Files of parquet-mr, Impala, parquet-cpp and others, with the rows that DuckDB reads.
const apache = [
  "datapage_v2.snappy",
  "dict-page-offset-zero",
  "list_columns",
  "lz4_raw_compressed",
  "nation.dict-malformed",
  "nested_lists.snappy",
  "nested_maps.snappy",
  "nullable.impala",
  "old_list_structure",
  "page_v2_empty_compressed",
  "repeated_no_annotation",
  "repeated_primitive_no_list",
  "rle_boolean_encoding",
];
// DuckDB does not read these two; both hold the rows of lz4_raw_compressed.
const deprecatedLz4 = ["hadoop_lz4_compressed", "non_hadoop_lz4_compressed"];
for (const name of [...apache, ...deprecatedLz4]) {
  const readable = deprecatedLz4.includes(name) ? "lz4_raw_compressed" : name;
  const result = await duckdb.run(
    `select to_json(t)::varchar from read_parquet('${apacheFolder}/${readable}.parquet', binary_as_string = true) t`,
  );
  save(
    `apache-${name}`,
    fs.readFileSync(`${apacheFolder}/${name}.parquet`),
    (await result.getRows()).map(([json]) => json),
  );
}
