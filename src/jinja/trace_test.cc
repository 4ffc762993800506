#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "jinja/template.h"

namespace tessera::jinja {
namespace {

// Renders a template with u = "a<b>c" and t = "x", and puts the parts that come from u in brackets.
std::string traced(const std::string& source) {
  Value::Object context = {{"u", "a<b>c"}, {"t", "x"}, {"d", Value::Object{{"k", "<b>"}}}};
  const Template compiled = Template::parse(source, "test");
  const std::string plain = compiled.render(context).text;
  RenderOptions options;
  options.traced_texts = {{*context[0].value.string(), 1}, {*context[2].value.find("k")->string(), 2}};
  Rendered rendered = compiled.render(context, options);
  EXPECT_EQ(rendered.text, plain);
  for (auto span = rendered.traced_spans.rbegin(); span != rendered.traced_spans.rend(); ++span) {
    rendered.text.insert(static_cast<size_t>(span->end), "]");
    rendered.text.insert(static_cast<size_t>(span->begin), "[");
  }
  return rendered.text;
}

TEST(TemplateTrace, FollowsBytesThroughWhatTemplatesDoToStrings) {
  EXPECT_EQ(traced("{{ t }}{{ u }}"), "x[a<b>c]");
  EXPECT_EQ(traced("{{ '<' + t + u + '>' }}"), "<x[a<b>c]>");
  EXPECT_EQ(traced("{% set s = t + u %}{% set s = s + t %}{{ s }}{{ s }}"), "x[a<b>c]xx[a<b>c]x");
  EXPECT_EQ(traced("{{ '<' ~ u ~ 1 }}"), "<[a<b>c]1");
  EXPECT_EQ(traced("{{ u[1:4] }}{{ u[::-1] }}"), "[<b>c>b<a]");
  EXPECT_EQ(traced("{{ (' ' + u + ' ') | trim }}"), "[a<b>c]");
  EXPECT_EQ(traced("{{ (u + t).split('<')[1] }}"), "[b>c]x");
  EXPECT_EQ(traced("{{ u.replace('a', '<') }}"), "<[<b>c]");
  EXPECT_EQ(traced("{{ 'ab'.replace('b', u) }}"), "a[a<b>c]");
  EXPECT_EQ(traced("{{ [t, u] | join('<') }}{{ u.join(['1', '2']) }}"), "x<[a<b>c]1[a<b>c]2");
  EXPECT_EQ(traced("{{ '<%s>' % u }}{{ '%7s' | format(u) }}{{ '<{}>'.format(u) }}"),
            "<[a<b>c]>  [a<b>c]<[a<b>c]>");
  EXPECT_EQ(traced("{{ u | upper }}{{ u | title }}"), "[A<B>CA<B>c]");
  EXPECT_EQ(traced("{{ u | tojson }}{{ d | tojson }}"), "\"[a<b>c]\"{\"k\": \"[<b>]\"}");
  EXPECT_EQ(traced("{{ d }}{{ [u] }}"), "{'k': '[<b>]'}['[a<b>c]']");
  EXPECT_EQ(traced("{{ u * 2 }}{{ u.ljust(7, '<') }}"), "[a<b>ca<b>ca<b>c]<<");
  EXPECT_EQ(traced("{{ '%-7s' % u }}"), "[a<b>c]  ");
  EXPECT_EQ(traced("{{ (u + '\\n' + u) | indent(1) }}"), "[a<b>c]\n [a<b>c]");
  EXPECT_EQ(traced("{% macro m(s) %}<{{ s }}>{% endmacro %}{{ m(u) }}{{ m(t) }}"), "<[a<b>c]><x>");
  EXPECT_EQ(traced("{% set s %}<{{ u }}{{ d.k }}{% endset %}{{ t }}{{ s }}"), "x<[a<b>c][<b>]");
  EXPECT_EQ(traced("{% filter trim %} {{ u }} {% endfilter %}"), "[a<b>c]");
  EXPECT_EQ(traced("{{ u.split('<') | join(' ') }}"), "[a] [b>c]");
  EXPECT_EQ(traced("{{ u | length }}{{ '<b>' in u }}{{ u == 'a<b>c' }}"), "5TrueTrue");
}

// The output for each message, as "index:text".
std::vector<std::string> items(const std::string& source) {
  const Value::Object context = {
      {"l", Value::List{Value::Object{{"c", "0"}}, Value::Object{{"c", "1"}}, Value::Object{{"c", "2"}}}}};
  RenderOptions options;
  options.traced_items = context[0].value.list();
  const Rendered rendered = Template::parse(source, "test").render(context, options);
  std::vector<std::string> texts;
  for (const TracedItem& item : rendered.traced_items) {
    texts.push_back(
        std::to_string(item.index) + ":" +
        rendered.text.substr(static_cast<size_t>(item.begin), static_cast<size_t>(item.end - item.begin)));
  }
  return texts;
}

TEST(TemplateTrace, TellsWhatIsWrittenForTheItemsOfAList) {
  using ::testing::ElementsAre;
  EXPECT_THAT(items("{% for m in l %}<{{ m.c }}>{% endfor %}."), ElementsAre("0:<0>", "1:<1>", "2:<2>"));
  EXPECT_THAT(items("{% for m in l[1:] %}{% for n in l %}{{ n.c }}{% endfor %}{% endfor %}"),
              ElementsAre("1:012", "2:012"))
      << "of the outermost loop";
  EXPECT_THAT(
      items(
          "{% for m in l if m.c != '1' %}{% if m.c == '0' %}{% continue %}{% endif %}{{ m.c }}{% endfor %}"),
      ElementsAre("2:2"));
  EXPECT_THAT(items("{% for m in l | reverse %}{{ m.c }}{% endfor %}"), ElementsAre("2:2", "1:1", "0:0"));
  EXPECT_THAT(items("{% set s %}{% for m in l %}{{ m.c }}{% endfor %}{% endset %}{{ s }}"), ElementsAre());
  EXPECT_THAT(items("{% for i in range(3) %}{{ l[i].c }}{% endfor %}"), ElementsAre());
}

}  // namespace
}  // namespace tessera::jinja
