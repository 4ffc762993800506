// Makes one HTML document of the page's files and writes it as C++: node bundle.mjs OUT.cc
// The modules become one script, in the order of their imports; names at their top level must therefore differ.
import crypto from "node:crypto";
import fs from "node:fs";
import path from "node:path";

const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const read = (name) => fs.readFileSync(path.join(here, name), "utf8");

const IMPORT = /^import\s+[^;]*?from\s+"([^"]+)";\n/gm;

// The text of a module and of those it imports, each once.
function withImports(name, seen) {
  if (seen.has(name)) return "";
  seen.add(name);
  const text = read(name);
  const imported = [...text.matchAll(IMPORT)].map((match) => path.normalize(match[1]));
  return imported.map((other) => withImports(other, seen)).join("") + text.replace(IMPORT, "").replace(/^export /gm, "");
}

const uplot = read("node_modules/uplot/dist/uPlot.iife.min.js");
const licence = read("node_modules/uplot/LICENSE");
const script = `/* uPlot\n${licence}*/\n${uplot}\n${withImports("main.js", new Set())}`;
const style = read("node_modules/uplot/dist/uPlot.min.css") + read("page.css");
for (const [name, text] of Object.entries({ script, style })) {
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`${name}: contains a tag that would end it`);
}

const hash = (text) => `'sha256-${crypto.createHash("sha256").update(text).digest("base64")}'`;
const policy =
  `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; img-src data:; connect-src 'self'; ` +
  "base-uri 'none'; form-action 'none'";
const parts = { POLICY: policy, STYLE: style, SCRIPT: script };
const [before, after] = read("index.html")
  .replace(/@(POLICY|STYLE|SCRIPT)@/g, (_, name) => parts[name])
  .split("@DATA@");

// Compilers need not take longer literals than 65,536 characters.
const PIECE = 16000;
function pieces(text) {
  const bytes = Buffer.from(text);
  const list = [];
  for (let at = 0; at < bytes.length; at += PIECE) {
    const escaped = [...bytes.subarray(at, at + PIECE)].map((byte) =>
      byte === 0x0a ? "\\n" : byte === 0x22 || byte === 0x5c || byte === 0x3f ? `\\${String.fromCharCode(byte)}`
        : byte < 0x20 || byte > 0x7e ? `\\${byte.toString(8).padStart(3, "0")}` : String.fromCharCode(byte));
    list.push(`    "${escaped.join("")}",\n`);
  }
  return list.join("");
}

fs.writeFileSync(process.argv[2], `// Written by src/monitor/web/bundle.mjs.
#include <span>
#include <string_view>
namespace tessera::page_parts {
extern const std::span<const std::string_view> before_data;
extern const std::span<const std::string_view> after_data;
extern const std::string_view security_policy;
namespace {
constexpr std::string_view kBefore[] = {
${pieces(before)}};
constexpr std::string_view kAfter[] = {
${pieces(after)}};
}  // namespace
const std::span<const std::string_view> before_data = kBefore;
const std::span<const std::string_view> after_data = kAfter;
const std::string_view security_policy = ${JSON.stringify(policy + "; frame-ancestors 'none'")};
}  // namespace tessera::page_parts
`);
