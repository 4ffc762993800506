// Compares ids and decoded text of Tessera's tokenizer with those of @huggingface/tokenizers, for whole files and
// for random Unicode text. Usage: node compare.mjs HELPER TOKENIZER_FOLDER [TEXT_FILE...]
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import path from "node:path";

import { Tokenizer } from "@huggingface/tokenizers";

const SEED = 20240607;
const NUM_RANDOM_TEXTS = 3000;

// mulberry32: small, and the same everywhere.
function makeRandom(seed) {
  let state = seed;
  return (bound) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 4294967296) * bound);
  };
}

// Pieces of the kinds of text where tokenizers differ, and any character at all.
function randomText(random, addedTokens) {
  const pick = (list) => list[random(list.length)];
  const kinds = [
    () => pick(["the", "Hello", "world", "I", "don", "we", "Größe", "naïve", "Tessera", "x86", "foo_bar"]),
    () => pick([" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085"]),
    () => pick(["'s", "'S", "'t", "'RE", "'ve", "'m", "'ll", "'LL", "'d", "'x", "''", "\u2019s"]),
    () => String(random(10 ** (1 + random(8)))),
    () => pick([".", ",", "!!", "...", "(", ")", "[]", "->", "<", ">", "|", "_", "-", "#", "@", "//", "\\", '"', "“", "—"]),
    () => pick(["é", "e\u0301", "ü", "ß", "İ", "ı", "ﬁ", "Å", "Ω", "ж", "Ы", "ת", "ع", "हि", "क्ष", "ไทย", "한국", "漢字", "かな"]),
    () => pick(["😀", "👩‍👩‍👧", "🏳️‍🌈", "🇩🇪", "✅", "\u200b", "\ufeff", "\u200d", "\u0301", "\u0000", "\u007f"]),
    () => pick(["٣", "४५", "Ⅷ", "一二", "𝟘𝟙", "𐄇"]),
    () => (addedTokens.length > 0 ? pick(addedTokens) : "<s>"),
    () => randomCharacter(random),
  ];
  let text = "";
  for (let n = 1 + random(12); n > 0; --n) text += pick(kinds)();
  return text;
}

function randomCharacter(random) {
  while (true) {
    const limit = [0x80, 0x250, 0x3000, 0x10000, 0x110000][random(5)];
    const codePoint = random(limit);
    if (codePoint < 0xd800 || codePoint > 0xdfff) return String.fromCodePoint(codePoint);
  }
}

// JavaScript's own \s, which the package uses for the pattern of ByteLevel, differs from White_Space (Unicode, and
// Hugging Face's Rust library) in two characters: it has U+FEFF and lacks U+0085.
function withoutOddSpaces(text) {
  return text.replace(/[\u0085\ufeff]/g, "");
}

// For each text a line "id id id "decoded"".
function tesseraLines(helper, folder, texts, addSpecialTokens) {
  const run = spawnSync(helper, [folder, String(addSpecialTokens)], {
    input: texts.map((text) => JSON.stringify(text) + "\n").join(""),
    encoding: "utf8",
    maxBuffer: 1 << 30,
  });
  if (run.status !== 0) throw new Error(`${helper} failed: ${run.stderr ?? run.error}`);
  const lines = run.stdout.split("\n").slice(0, -1);
  if (lines.length !== texts.length) throw new Error(`${texts.length} texts gave ${lines.length} lines`);
  return lines;
}

// The two JSON libraries escape some characters differently.
function sameLine(a, b) {
  const split = (line) => [line.slice(0, line.indexOf('"')), JSON.parse(line.slice(line.indexOf('"')))];
  return JSON.stringify(split(a)) === JSON.stringify(split(b));
}

const [helper, folder, ...files] = process.argv.slice(2);
const readJson = (name) => JSON.parse(fs.readFileSync(path.join(folder, name), "utf8"));
const tokenizerJson = readJson("tokenizer.json");
const theirs = new Tokenizer(tokenizerJson, readJson("tokenizer_config.json"));
const addedTokens = tokenizerJson.added_tokens.map((token) => token.content);

const random = makeRandom(SEED);
const usesJavaScriptSpaces = tokenizerJson.pre_tokenizer?.type === "ByteLevel";
const randomTexts = Array.from({ length: NUM_RANDOM_TEXTS }, () => {
  const text = randomText(random, addedTokens);
  return usesJavaScriptSpaces ? withoutOddSpaces(text) : text;
});
const fileTexts = files.map((file) => fs.readFileSync(file, "utf8"));
let failures = 0;
for (const addSpecialTokens of [true, false]) {
  // Once is enough for whole files, on which the package spends most of a minute.
  const texts = addSpecialTokens ? [...fileTexts, ...randomTexts] : randomTexts;
  const ours = tesseraLines(helper, folder, texts, addSpecialTokens);
  texts.forEach((text, i) => {
    const { ids } = theirs.encode(text, { add_special_tokens: addSpecialTokens });
    const options = { skip_special_tokens: false, clean_up_tokenization_spaces: false };
    const decoded = ids.length === 0 ? "" : theirs.decode(ids, options);  // it refuses an empty list
    const expected = [...ids, JSON.stringify(decoded)].join(" ");
    if (sameLine(ours[i], expected)) return;
    if (++failures > 10) return;
    const name = texts.length > randomTexts.length && i < files.length ? files[i] : JSON.stringify(text);
    console.error(`${name} (seed ${SEED})\n  expected ${expected.slice(0, 400)}\n  got      ${ours[i].slice(0, 400)}`);
  });
}
console.log(`${folder}: ${files.length} files and ${NUM_RANDOM_TEXTS} random texts, ${failures} differences`);
process.exit(failures === 0 ? 0 : 1);
