// Compares rendered chat templates with those of @huggingface/jinja, for random conversations with and without tools.
// Usage: node compare.mjs HELPER [TEMPLATE_FILE...]
import { spawnSync } from "node:child_process";
import fs from "node:fs";

import { Template } from "@huggingface/jinja";

const SEED = 20240607;
const NUM_CONVERSATIONS = 60;

// Written here, in the manner of the models that their names say, so that a clone alone has something to compare.
const OWN_TEMPLATES = {
  chatml:
    "{% for message in messages %}\n{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + " +
    "'<|im_end|>' + '\\n' }}\n{% endfor %}\n{% if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n" +
    "{% endif %}\n",
  alternating:
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}" +
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}" +
    "{%- for message in messages -%}\n  {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\n" +
    "    {{ raise_exception('roles must alternate') }}\n  {%- endif -%}\n" +
    "  {% if loop.first and system %}[{{ system ~ '] ' }}{% endif %}" +
    "{{ message.role | upper }}: {{ message['content'].strip() }}{{ eos_token if not loop.last else '' }}\n" +
    "{%- endfor -%}",
  tools:
    "{%- macro describe(tool, depth=0) -%}\n{{ depth }} {{ tool.name }}: {{ tool.parameters | tojson }}" +
    "{%- for name, property in tool.parameters.properties.items() %}\n {{ name }} ({{ property.type }})" +
    "{% if name in tool.parameters.required %}*{% endif %}{% endfor %}\n{%- endmacro -%}\n" +
    "{%- set ns = namespace(users=0, last='none') -%}\n" +
    "{% if tools is not none and tools is defined and tools | length > 0 %}{% for tool in tools %}\n" +
    "{{ describe(tool.function, loop.index) }};{% endfor %}{{ tools | tojson(indent=2) }}{% endif %}\n" +
    "{% for message in messages if message.role != 'system' %}\n  {%- if message.role == 'user' %}" +
    "{% set ns.users = ns.users + 1 %}{% endif %}{% set ns.last = message.role %}\n" +
    "{{ loop.index }}/{{ loop.length }} {{ message.content[::-1] if ns.users is odd else message.content }}\n" +
    "{% endfor %}{{ ns.users }} {{ ns.last }} {{ messages | map(attribute='role') | unique | join(',') }}" +
    "{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content | tojson }}",
};

const TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Weather of a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string", description: 'City, e.g. "Paris"' }, days: { type: "integer" } },
        required: ["city"],
      },
    },
  },
];

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

function randomContext(random) {
  const pick = (list) => list[random(list.length)];
  const text = () =>
    Array.from({ length: 1 + random(4) }, () =>
      pick(["Hello", "Größe", "漢字", "2+2?", " ", "\n", "  ", '"quoted"', "it's", "<b>", "{{ x }}", "</s>", "\\n"]),
    ).join("");
  const messages = random(2) === 0 ? [{ role: "system", content: text() }] : [];
  for (let turns = 1 + random(4); turns > 0; --turns) {
    messages.push({ role: "user", content: text() });
    if (turns > 1 || random(3) > 0) messages.push({ role: "assistant", content: text() });
  }
  return {
    messages,
    tools: random(3) === 0 ? TOOLS : null,
    add_generation_prompt: random(2) === 0,
    bos_token: "<s>",
    eos_token: "</s>",
    date_string: "15 Jan 2025",
  };
}

function theirResult(template, context) {
  try {
    return { text: template.render(structuredClone(context)) };
  } catch (error) {
    return { error: error.message };
  }
}

const [helper, ...files] = process.argv.slice(2);
const sources = Object.entries(OWN_TEMPLATES);
for (const file of files) sources.push([file, fs.readFileSync(file, "utf8")]);
// The package knows the tag, but not what Transformers does with it.
const cases = sources
  .filter(([, source]) => !source.includes("{% generation"))
  .flatMap(([name, source]) => {
    const random = makeRandom(SEED);
    const template = new Template(source);
    return Array.from({ length: NUM_CONVERSATIONS }, () => ({ name, source, template, context: randomContext(random) }));
  });

const run = spawnSync(helper, [], {
  input: cases.map(({ source, context }) => JSON.stringify({ template: source, context }) + "\n").join(""),
  encoding: "utf8",
  maxBuffer: 1 << 30,
});
if (run.status !== 0) throw new Error(`${helper} failed: ${run.stderr ?? run.error}`);
const lines = run.stdout.split("\n").slice(0, -1);
if (lines.length !== cases.length) throw new Error(`${cases.length} cases gave ${lines.length} lines`);

let numTexts = 0;
let numDifferent = 0;
cases.forEach(({ name, template, context }, i) => {
  const ours = JSON.parse(lines[i]);
  const theirs = theirResult(template, context);
  const same = typeof ours === "string" ? ours === theirs.text : theirs.error !== undefined;
  if (typeof ours === "string") ++numTexts;
  if (!same && ++numDifferent <= 5) {
    console.error(`${name}\n  context ${JSON.stringify(context)}\n  ours   ${lines[i]}\n  theirs ${JSON.stringify(theirs)}`);
  }
});
console.log(`${cases.length} conversations, ${numTexts} rendered, ${numDifferent} differ`);
if (numDifferent > 0 || numTexts < cases.length / 2) process.exit(1);
