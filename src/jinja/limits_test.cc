// Hostile templates: each ends in an Error, soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <pthread.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "jinja/template.h"

namespace tessera::jinja {
namespace {

using testing::HasSubstr;

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// The error of a rendering with a tenth of the default limits; empty if it renders.
std::string refusal_of(const std::string& source, const Value::Object& context = {}) {
  RenderOptions options;
  options.max_steps /= 10;
  options.max_output_bytes /= 10;
  options.max_memory_bytes /= 10;
  try {
    Template::parse(source, "test").render(context, options);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
}

// A text of `bytes`, as a variable of the template.
std::string with_text(const std::string& text, int64_t times, const std::string& rest) {
  return "{% set s = '" + text + "' * " + std::to_string(times) + " %}" + rest;
}

std::string many_times(const std::string& expression) {
  return "{% for i in range(99999) %}{% for k in range(99999) %}{% set t = " + expression +
         " %}{% endfor %}{% endfor %}";
}

constexpr const char* kTextOperations = R"(
    s ~ 'x'; s + s; s == s2; s < s2; s is sameas s2; s in s2; 'b' in s; s[0]; s[-1]; s[1:]; s[::2];
    s[::-1]; s | length; s | upper; s | lower; s | capitalize; s | title; s | trim; s | e;
    s | forceescape; s | safe ~ ''; s | string ~ ''; s | list; s | first; s | last; s | reverse;
    s | replace('a', 'b'); s | replace('x', 'b'); s | center(150000); s | indent; s | truncate(5);
    s | wordcount; s | format; '%s' | format(s); '%5s' % s; s | filesizeformat; s | urlencode;
    {s: s} | urlencode; {'a': s} | xmlattr; s | tojson; {s: 1} | tojson; [s] | string; s | int; s | float;
    [s, s2] | join; [s, s2] | sort; [s, s2] | unique | list; [s, s2] | max; {s: 1} | dictsort;
    [{'a': s}, {'a': s2}] | groupby('a'); s.upper(); s.lower(); s.casefold(); s.swapcase(); s.title();
    s.capitalize(); s.strip(); s.strip('ab'); s.strip(s2); s.lstrip(s2); s.rstrip(s2); s.isalpha();
    s.isascii(); s.istitle(); s.isidentifier(); s.isalnum(); s.islower(); s.isprintable(); s.find('b');
    s.find(s2); s.rfind('b'); s.rfind(s2); s.count('a'); s.count('b'); s.count(''); s.startswith(s2);
    s.endswith(s2); s.startswith(('b',) * 99999); s.replace('a', 'b'); s.replace('', ''); s.split();
    s.split('a'); s.split('b'); s.rsplit('a', 5); s.rsplit('b', 5); s.rsplit(None, 5); s.splitlines();
    s.partition('b'); s.rpartition('b'); s.removeprefix(s2); s.removesuffix(s2); s.ljust(150000);
    s.rjust(150000); s.center(150000); s.zfill(150000); s.expandtabs(); s.format(); '{}'.format(s);
    '{:>9}'.format(s); '{!r}'.format(s); {s: 1}[s2]; {s: 1}.get(s2); s2 in {s: 1}; dict([[s, 1]]);
    namespace(a=s); s is lower; s is upper; s is filter; s in [s2]; [s].index(s2); [s].count(s2);
    (s, 1) == (s2, 1); s * 1; [s] * 9; s | map('upper') | list; s | select | list; s | batch(2) | list;
    s | slice(2) | list; s | min; s | sum(start=[]); strftime_now(s) | length; joiner(s)() ~ '')";

// Any operation on text uses up the steps or the memory if repeated often enough. The time limit is many
// times what an idle machine takes.
TEST(JinjaLimits, EveryOperationOnLongTextTakesSteps) {
  for (const std::string& operation : split(kTextOperations, ';')) {
    const Stopwatch watch;
    const std::string source = with_text("a", 50'000, "{% set s2 = 'a' * 50000 %}" + many_times(operation));
    const std::string refusal = refusal_of(source);
    EXPECT_LT(watch.seconds(), 5.0) << operation;
    EXPECT_NE(refusal, "") << operation;
    EXPECT_THAT(refusal, Not(HasSubstr("bad_alloc"))) << operation;
  }
}

// Before and after an expression: nested in itself, and around a macro's call of itself.
const std::vector<std::pair<std::string, std::string>> kProductions = {{"(", ")"},
                                                                       {"[", "]"},
                                                                       {"(", ",)"},
                                                                       {"{'a': ", "}"},
                                                                       {"x and (", ")"},
                                                                       {"n or (", ")"},
                                                                       {"not ", ""},
                                                                       {"-", ""},
                                                                       {"+", ""},
                                                                       {"1 if n else ", ""},
                                                                       {"(", ") if x else 1"},
                                                                       {"1 if (", ") else 1"},
                                                                       {"x == (", ")"},
                                                                       {"x < 1 < (", ")"},
                                                                       {"x in (", ")"},
                                                                       {"1 + (", ")"},
                                                                       {"1 - (", ")"},
                                                                       {"2 * (", ")"},
                                                                       {"1 / (", ")"},
                                                                       {"1 // (", ")"},
                                                                       {"1 % (", ")"},
                                                                       {"1 ** (", ")"},
                                                                       {"'a' ~ (", ")"},
                                                                       {"x[", "]"},
                                                                       {"x[", ":]"},
                                                                       {"x[:", "]"},
                                                                       {"x[::", "]"},
                                                                       {"(", ").y"},
                                                                       {"(", ")[0]"},
                                                                       {"(", ")(1)"},
                                                                       {"f(", ")"},
                                                                       {"f(a=", ")"},
                                                                       {"f(*", ")"},
                                                                       {"f(**", ")"},
                                                                       {"x.get(", ")"},
                                                                       {"(", ") | upper"},
                                                                       {"x | default(", ")"},
                                                                       {"(", ") is defined"},
                                                                       {"x is sameas (", ")"},
                                                                       {"x, ", ""},
                                                                       {"(", ") or n"},
                                                                       {"(", ") and x"},
                                                                       {"(", ") ~ 'a'"},
                                                                       {"(", ") + 1"},
                                                                       {"(", ") ** 1"},
                                                                       {"x.y", ""},
                                                                       {"x is not none and ", ""}};

TEST(JinjaLimits, EveryProductionIsLimitedWhenParsed) {
  for (const auto& [before, after] : kProductions) {
    for (const int count : {150, 300, 1'500}) {
      const std::string nested = repeated(before, count) + "x" + repeated(after, count);
      for (const std::string& source :
           {"{{ " + nested + " }}", "{% if " + nested + " %}{% endif %}",
            "{% for i in " + nested + " %}{% endfor %}", "{% set y = " + nested + " %}"}) {
        const Stopwatch watch;
        refusal_of(source, {{"x", 1}, {"n", nullptr}});
        EXPECT_LT(watch.seconds(), 10.0) << before << after << " " << count;
      }
    }
  }
  for (const char* chain :
       {".y", "[0]", "()", "|upper", "|e|trim", "+1", "-1", "~1", "*1", "**1", " and x", " or x",
        " if x else x", " if x", " == x", " in x", ",x", " is defined", ".a()"}) {
    for (const int count : {300, 50'000}) {
      const Stopwatch watch;
      refusal_of("{{ x" + repeated(chain, count) + " }}", {{"x", 1}});
      EXPECT_LT(watch.seconds(), 10.0) << chain << " " << count;
    }
  }
}

TEST(JinjaLimits, EveryProductionIsLimitedWhenAMacroCallsItself) {
  for (const auto& [before, after] : kProductions) {
    for (const int count : {1, 60}) {
      const std::string call = repeated(before, count) + "m()" + repeated(after, count);
      for (const std::string& body :
           {"{{ " + call + " }}", "{% set y = " + call + " %}", "{% if " + call + " %}{% endif %}",
            "{% for i in [" + call + "] if " + call + " %}{% endfor %}",
            "{% with y = " + call + " %}{% endwith %}", "{% call m() %}{{ " + call + " }}{% endcall %}",
            "{% filter default(" + call + ") %}{% endfilter %}"}) {
        const std::string refusal =
            refusal_of("{% macro f() %}{% endmacro %}{% macro m() %}" + body + "{% endmacro %}{{ m() }}",
                       {{"x", 1}, {"n", nullptr}});
        // Some are wrong in another way before they are deep.
        EXPECT_TRUE(refusal.empty() || refusal.starts_with("test: line 1: ")) << body << "\n" << refusal;
      }
    }
  }
}

TEST(JinjaLimits, DeepValuesAreLimited) {
  const auto grown = [](const std::string& start, const std::string& step, const std::string& use) {
    return "{% set ns = namespace(x=" + start + ") %}{% for i in range(9999) %}{% set ns.x = " + step +
           " %}{% endfor %}{{ " + use + " }}";
  };
  for (const char* use : {"ns.x",
                          "ns.x | tojson",
                          "ns.x == ns.x",
                          "ns.x < ns.x",
                          "ns.x in {1: 2}",
                          "ns.x in [ns.x]",
                          "ns.x | string",
                          "ns.x ~ ''",
                          "[ns.x, ns.x] | unique | list",
                          "[ns.x, ns.x] | sort",
                          "ns.x | pprint",
                          "'%s' % ns.x",
                          "'{}'.format(ns.x)",
                          "ns.x | join",
                          "{ns.x: 1}",
                          "ns.x | urlencode",
                          "{'a': ns.x} | xmlattr",
                          "ns.x | map('map', 'map', 'list') | list",
                          "ns.x is sameas ns.x",
                          "ns.x | list | length",
                          "ns.x | first"}) {
    for (const auto& [start, step] :
         std::vector<std::pair<std::string, std::string>>{{"[]", "[ns.x]"},
                                                          {"()", "(ns.x,)"},
                                                          {"{}", "{'a': ns.x}"},
                                                          {"[]", "[ns.x, ns.x]"},
                                                          {"{}", "{'a': ns.x}.items()"}}) {
      refusal_of(grown(start, step, use));
    }
  }
  const std::string maps =
      "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"
      "{{ ns.x | map(" +
      repeated("'map', ", 9'999) + "'upper') | list }}";
  EXPECT_THAT(refusal_of(maps), HasSubstr("nested"));
}

// A thread with the least stack that is usual.
TEST(JinjaLimits, HoldOnAThreadWithASmallStack) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size_t{512} << 10);
  pthread_t thread = {};
  static std::string refusal;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void*) -> void* {
                  refusal = refusal_of(
                      "{% macro m() %}{{ x and (x and (x and (x and m()))) }}{% endmacro %}{{ m() }}",
                      {{"x", 1}});
                  return nullptr;
                },
                nullptr),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_THAT(refusal, HasSubstr("nested"));
}

TEST(JinjaLimits, LargeTemplatesAreBoundInTime) {
  std::string names, ifs, parameters, keywords, raws;
  for (int i = 0; names.size() < 200'000; ++i) names += "{% set a" + std::to_string(i) + "=1 %}";
  for (int i = 0; ifs.size() < 250'000; ++i) ifs += "{% if a" + std::to_string(i % 99) + " %}{% endif %}";
  for (int i = 0; parameters.size() < 400'000; ++i) parameters += "a" + std::to_string(i) + ",";
  for (int i = 0; keywords.size() < 400'000; ++i) keywords += "a" + std::to_string(i) + "=1,";
  while (raws.size() < 400'000) raws += "{% raw %}{% ";
  for (const std::string& source :
       {names + ifs, "{% macro m(" + parameters + "b) %}{% endmacro %}{{ m() }}",
        "{{ namespace(" + keywords + "b=1).b }}", "{{ [" + repeated("x,", 200'000) + "] | length }}",
        "{{ 1" + repeated("+1", 200'000) + " }}", "{{ 'a'" + repeated("'b'", 100'000) + " | length }}",
        repeated("{% if x %}", 90) + names, raws, "{{ " + repeated("y", 400'000) + " }}",
        "{{ 1" + repeated("0", 400'000) + ".0 }}", "{{ 1" + repeated("0", 400'000) + " }}",
        "{{ x | " + repeated("y", 400'000) + " }}",
        "{{ f(" + repeated("y", 200'000) + "=1, " + repeated("y", 200'000) + "=1) }}",
        "{{ x" + repeated("\n", 400'000) + "}}", repeated("{", 400'000),
        repeated("{% if x %}{% else %}", 40'000),
        "{% if x %}" + repeated("{% elif x %}", 70'000) + "{% endif %}", std::string(2 << 20, 'x')}) {
    const Stopwatch watch;
    EXPECT_LT(refusal_of(source, {{"x", 1}}).size(), 600u) << source.substr(0, 60);
    EXPECT_LT(watch.seconds(), 10.0) << source.substr(0, 60);
  }
}

}  // namespace
}  // namespace tessera::jinja
