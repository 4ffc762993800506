#include "jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "support/value_json.h"
#include "test_paths.h"

namespace tessera::jinja {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

Value::Object context_of(std::string_view json) { return *to_value(ordered_json::parse(json)).object(); }

// The vectors' clock: Wednesday, 15 January 2025, 12:34:56.
RenderOptions at_fixed_time() {
  RenderOptions options;
  options.clock = [] {
    std::tm time{};
    time.tm_year = 125;
    time.tm_mday = 15;
    time.tm_hour = 12;
    time.tm_min = 34;
    time.tm_sec = 56;
    time.tm_wday = 3;
    time.tm_yday = 14;
    return time;
  };
  return options;
}

std::string render(std::string_view source, const Value::Object& context = {}) {
  return Template::parse(source, "test").render(context, at_fixed_time()).text;
}

// The message of the Error that rendering ends with.
std::string error_of(std::string_view source, const Value::Object& context = {},
                     const RenderOptions& options = at_fixed_time()) {
  try {
    const std::string text = Template::parse(source, "test").render(context, options).text;
    return "no error, but: " + text.substr(0, 200);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
}

ordered_json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return ordered_json::parse(file);
}

TEST(JinjaTemplate, RendersAsJinja2Does) {
  const ordered_json document = read_json(data_folder() / "jinja" / "vectors.json");
  const Value context = to_value(document["context"]);
  ASSERT_GT(document["vectors"].size(), 300u);
  for (const ordered_json& vector : document["vectors"]) {
    const auto source = vector["template"].get<std::string>();
    SCOPED_TRACE(source);
    if (vector.contains("expected")) {
      EXPECT_EQ(render(source, *context.object()), vector["expected"].get<std::string>());
    } else {
      EXPECT_THAT(error_of(source, *context.object()), HasSubstr("test: line "));
    }
  }
}

TEST(JinjaTemplate, RendersPublishedChatTemplatesAsTransformersDoes) {
  const auto folder = shared_folder() / "data" / "chat-templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no chat templates at " << folder;
  int num_vectors = 0;
  for (const auto& model : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(model.path());
    std::ifstream file(model.path() / "chat_template.jinja");
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    const Template parsed = Template::parse(source, "chat_template.jinja");
    for (const ordered_json& vector : read_json(model.path() / "vectors.json")) {
      SCOPED_TRACE(vector["name"]);
      const Value context = to_value(vector);
      ++num_vectors;
      if (vector.contains("expected")) {
        EXPECT_EQ(parsed.render(*context.object(), at_fixed_time()).text,
                  vector["expected"].get<std::string>());
        continue;
      }
      try {
        parsed.render(*context.object(), at_fixed_time());
        ADD_FAILURE() << "expected an error";
      } catch (const RaisedByTemplate& error) {
        EXPECT_EQ(error.message(), vector["error"].get<std::string>());
      }
    }
  }
  EXPECT_GT(num_vectors, 100);
}

TEST(JinjaTemplate, TellsWhatTheTemplateRaisedFromOtherErrors) {
  const Template parsed = Template::parse("a\n{{ raise_exception('roles must alternate') }}", "chat.jinja");
  try {
    parsed.render({});
    FAIL() << "expected an error";
  } catch (const RaisedByTemplate& error) {
    EXPECT_EQ(error.message(), "roles must alternate");
    EXPECT_STREQ(error.what(), "chat.jinja: line 2: the template refuses this: roles must alternate");
  }
  EXPECT_EQ(error_of("x\n\n{{ missing.role }}"), "test: line 3: 'missing' is undefined");
}

TEST(JinjaTemplate, SaysWhereATemplateIsWrong) {
  EXPECT_EQ(error_of("a\n{% if x %}b"),
            "test: line 2: expected '{% elif %}' or '{% else %}' or '{% endif %}', found "
            "the end of the template");
  EXPECT_EQ(error_of("{{ a b }}"), "test: line 1: expected '}}', found 'b'");
  EXPECT_EQ(error_of("\n\n{{ 1 +"),
            "test: line 3: expected '}}' at the end of this tag, found the end of the template");
  EXPECT_EQ(error_of("{% include 'x' %}"),
            "test: line 1: '{% include %}' is not supported: a chat template is one file");
  EXPECT_EQ(error_of("{{ 1 | nope }}"), "test: line 1: no filter named 'nope'");
  EXPECT_EQ(error_of("{{ x | wordwrap }}"), "test: line 1: no filter named 'wordwrap' is supported");
  EXPECT_EQ(error_of("a\n{{ x }}\xFF"), "test: line 2: expected UTF-8, found the byte 0xff");
  EXPECT_EQ(error_of("{{ 1 – 2 }}"), "test: line 1: unexpected character '–' in a tag");
  EXPECT_EQ(error_of("{{ 99999999999999999999 }}"),
            "test: line 1: the integer 99999999999999999999 does not fit in 64 bits");
}

TEST(JinjaTemplate, SaysWhatWentWrongInPythonsWords) {
  const Value::Object context = context_of(R"({"m": {"role": "user"}, "n": null, "list": [1]})");
  EXPECT_EQ(error_of("{{ m.content.x }}", context), "test: line 1: 'dict object' has no attribute 'content'");
  EXPECT_EQ(error_of("{{ n.x.y }}", context), "test: line 1: 'None' has no attribute 'x'");
  EXPECT_EQ(error_of("{{ list[7].y }}", context), "test: line 1: list object has no element 7");
  EXPECT_EQ(error_of("{{ 'a' + n }}", context),
            "test: line 1: can only concatenate str (not \"NoneType\") to str");
  EXPECT_EQ(error_of("{{ list.append(2) }}", context),
            "test: line 1: access to attribute 'append' of 'list' object is unsafe");
  EXPECT_EQ(error_of("{{ 4611686018427387904 * 2 }}"),
            "test: line 1: 4611686018427387904 * 2 does not fit in 64 bits");
}

TEST(JinjaTemplate, ReportsGenerationBlocksInBytes) {
  const Template parsed = Template::parse(
      "{% for m in messages %}é{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% "
      "endgeneration %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}",
      "test");
  const Value::Object context = context_of(
      R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "größe"},
          {"role": "assistant", "content": ""}]})");
  RenderOptions options;
  options.track_generation = true;
  const Rendered rendered = parsed.render(context, options);
  ASSERT_EQ(rendered.generation.size(), 2u);
  const auto [begin, end] = rendered.generation[0];
  EXPECT_EQ(rendered.text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), "größe</s>");
  EXPECT_EQ(rendered.generation[1], std::pair(end + 2, end + 6));
  EXPECT_TRUE(parsed.has_generation());
  EXPECT_TRUE(parsed.render(context).generation.empty());
  EXPECT_EQ(parsed.render(context).text, rendered.text);
}

TEST(JinjaTemplate, RefusesToTrackGenerationInCapturedText) {
  RenderOptions options;
  options.track_generation = true;
  const std::string block = "{% generation %}x{% endgeneration %}";
  for (const std::string& source :
       {"{% macro m() %}" + block + "{% endmacro %}{{ m() }}", "{% set t %}" + block + "{% endset %}{{ t }}",
        "{% filter upper %}" + block + "{% endfilter %}"}) {
    EXPECT_THAT(error_of(source, {}, options), HasSubstr("where its text goes is not known")) << source;
    EXPECT_NO_THROW(render(source)) << source;
  }
}

// Each ends in an error, soon and with little memory.
TEST(JinjaTemplate, EndsHostileTemplatesWithAnError) {
  RenderOptions options = at_fixed_time();
  options.max_steps = 2'000'000;
  options.max_memory_bytes = 32 << 20;
  options.max_output_bytes = 4 << 20;
  const std::string loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}";
  const std::vector<std::string> sources = {
      "{{ range(10**9) }}",
      loops + "x{% endfor %}{% endfor %}{% endfor %}",
      loops + "{% endfor %}{% endfor %}{% endfor %}",
      "{{ 'x' * 10**9 }}",
      "{{ [0] * 10**9 }}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor "
      "%}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s.replace('a', ns.s) %}{% "
      "endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s.join([ns.s, ns.s, 'b']) "
      "%}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | "
      "tojson }}",
      "{% set ns = namespace(x=[], y=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% set ns.y = "
      "[ns.y] %}"
      "{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{{ '%999999999d' % 1 }}",
      "{{ '{:999999999}'.format(1) }}",
      "{{ 'x'.center(10**9) }}",
      "{{ 'a\\tb'.expandtabs(10**9) }}",
      "{{ range(99999) | slice(10**9) | list }}",
      "{{ range(3) | batch(10**9, 'x') | list }}",
      "{{ 9 ** 99 }}",
      "{{ strftime_now('%9999999d') }}",
  };
  for (const std::string& source : sources) {
    EXPECT_THAT(error_of(source, {}, options), HasSubstr("test: line 1: ")) << source;
  }
}

TEST(JinjaTemplate, RefusesDeepNestingWhenParsing) {
  const auto repeated = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeated("(", 100'000), "{{ " + repeated("[", 100'000),
        "{{ " + repeated("not ", 100'000) + "x }}", "{{ " + repeated("-", 100'000) + "1 }}",
        "{{ x" + repeated(".x", 100'000) + " }}", "{{ 1" + repeated(" - 1", 100'000) + " }}",
        "{{ x" + repeated(" | upper", 100'000) + " }}", repeated("{% if x %}", 100'000),
        repeated("{% for x in x %}", 50'000)}) {
    EXPECT_THAT(error_of(source), HasSubstr("test: line 1: ")) << source.substr(0, 40);
  }
  // Long but flat.
  EXPECT_EQ(render("{{ 'a'" + repeated(" + 'b'", 10'000) + " }}").size(), 10'001u);
  EXPECT_EQ(render("{{ 'a'" + repeated(" ~ 'b'", 10'000) + " }}").size(), 10'001u);
}

TEST(JinjaTemplate, RendersTextsThatSpanManyBlocksOfMemory) {
  std::string content;
  for (int i = 0; content.size() < 300'000; ++i) content += "line " + std::to_string(i) + " é\n";
  const Value::Object context = {{"content", content}};
  const std::string copied =
      "{% set ns = namespace(text='') %}{% for line in content.split('\\n') %}"
      "{% set ns.text = ns.text + line + '\\n' %}{% endfor %}{{ ns.text }}";
  EXPECT_EQ(render(copied, context), content + "\n");
  EXPECT_EQ(render("{{ content[::-1][::-1] }}", context), content);
  EXPECT_EQ(render("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(content) ~ m(content) }}", context),
            content + content);
}

TEST(JinjaTemplate, AppendingToAStringLeavesItsOtherUsersAlone) {
  EXPECT_EQ(render("{% set a = 'x' ~ 'y' %}{% set b = a + '1' %}{% set c = a + '2' %}{% set d = b + '3' %}"
                   "{{ a }} {{ b }} {{ c }} {{ d }}"),
            "xy xy1 xy2 xy13");
}

TEST(JinjaTemplate, RendersInSeveralThreadsAtOnce) {
  const Template parsed = Template::parse(
      "{% set ns = namespace(n=0) %}{% for i in range(500) %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
      "test");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (size_t t = 0; t < texts.size(); ++t) {
    threads.emplace_back([&, t] { texts[t] = parsed.render({{"x", static_cast<int>(t)}}).text; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts, (std::vector<std::string>{"0", "500", "1000", "1500"}));
}

TEST(JinjaTemplate, UsesTheSystemsClockWithoutAnother) {
  const std::string year = Template::parse("{{ strftime_now('%Y') }}", "test").render({}).text;
  EXPECT_GE(std::stoi(year), 2024);
}

}  // namespace
}  // namespace tessera::jinja
