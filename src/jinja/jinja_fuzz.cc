// Any text is either refused as a template with an Error, or renders a conversation to text, or to an Error:
// within its limits, and twice the same.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "jinja/template.h"
#include "support/fuzz_support.h"

namespace {

using tessera::Value;

constexpr const char* kWords =
    R"~({{ }} {% %} {# #} {%- -%} {{- -}} +%} ␤ ␠␠ ( ) [ ] { } ' " \ | ~ + - * ** / // % == != < >= . , : =
    if␠ elif␠ else endif for␠ in␠ endfor recursive set␠ endset macro␠m(x) endmacro call␠m() endcall
    caller() filter␠ endfilter with␠ endwith raw endraw generation endgeneration break continue is␠ not␠
    and␠ or␠ loop. loop(x) x m(x) messages message.content message['role'] namespace() ns.x range(9)
    range(100000) 10**9 1.5 none true tojson(indent=2) upper replace('a',␠'b') join(',')
    map(attribute='role') selectattr('role') sort groupby('role') batch(2) slice(3) format(x)
    '%9999d'␠%␠x '{:>99}'.format(x) default(x) int round(2) indent truncate(3) unique items() split()
    .strip() [::-1] [1:] é 😀 x␠and␠( 1␠if␠x␠else␠( .ljust(10**18) .rfind(x) .count(x) .rsplit(x,␠2)
    .title() 'ΣΣ' urlencode e (x,) x␠in␠x map('map',␠'upper') dictsort string list length defined
    mapping)~"
    " \xff";

constexpr const char* kSeed =
    "{% set ns = namespace(x=0) %}{% macro m(x) %}<{{ x | upper }}{{ caller() if caller }}>{% endmacro %}"
    "{%- for message in messages if message.content is not none -%}\n{% set ns.x = ns.x + 1 %}"
    "{{ loop.index }}{{ '<|' ~ message['role'] + '|>' }}{% generation %}{{ message.content | trim }}{% "
    "endgeneration %}\n"
    "{% if loop.last and x[1:] %}{{ messages | map(attribute='role') | join(', ') }}{% break %}{% endif %}{% "
    "endfor %}"
    "{% call m('a') %}{{ messages | tojson(indent=2) }}{% endcall %}{% set t %}{{ m(ns.x) }}{% endset %}{{ "
    "t[::-1] }}";

Value::Object conversation() {
  const auto message = [](const char* role, Value content) {
    return Value(Value::Object{{"role", role}, {"content", std::move(content)}});
  };
  Value::List list = {message("system", " Be terse. "), message("user", "Größe 漢字 😀"),
                      message("assistant", nullptr), message("tool", Value::List{1, 2.5, true})};
  return {{"messages", std::move(list)}, {"x", "abc"}, {"bos_token", "<s>"}};
}

void check(std::string_view source) {
  static const Value::Object context = conversation();
  tessera::jinja::RenderOptions options;
  options.max_steps = 100'000;
  options.max_memory_bytes = 16 << 20;
  options.max_output_bytes = 1 << 20;
  options.clock = [] { return std::tm{}; };
  const auto parsed = tessera::jinja::Template::parse(source, "fuzz");
  options.track_generation = parsed.has_generation() && source.size() % 2 == 0;
  const tessera::jinja::Rendered rendered = parsed.render(context, options);
  if (parsed.render(context, options).text != rendered.text) std::abort();
  if (std::ssize(rendered.text) > options.max_output_bytes) std::abort();
  for (const auto& [begin, end] : rendered.generation) {
    if (begin > end || end > std::ssize(rendered.text)) std::abort();
  }
}

}  // namespace

TESSERA_FUZZ(kWords, kSeed, check, tessera::ExitCode::kBadData)
