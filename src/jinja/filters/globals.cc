// Global functions.
#include <algorithm>
#include <ctime>
#include <string>

#include "jinja/filters/functions.h"
#include "jinja/values/operators.h"
#include "jinja/values/python_text.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // of Jinja's sandbox

Datum range(Rendering& r, const Datum&, const Arguments& args) {
  Range range{0, to_integer(r, args[0], "range"), 1, 0};
  if (args.has(1)) {
    range.start = range.stop;
    range.stop = to_integer(r, args[1], "range");
  }
  if (args.has(2)) range.step = to_integer(r, args[2], "range");
  if (range.step == 0) r.fail("range() arg 3 must not be zero");
  const bool up = range.step > 0;
  // Differences of 64-bit integers, which may need 64 bits without a sign.
  const auto distance = [](int64_t low, int64_t high) {
    return low < high ? static_cast<uint64_t>(high) - static_cast<uint64_t>(low) : 0;
  };
  const uint64_t span = up ? distance(range.start, range.stop) : distance(range.stop, range.start);
  const uint64_t step = up ? static_cast<uint64_t>(range.step) : ~static_cast<uint64_t>(range.step) + 1;
  const uint64_t size = span == 0 ? 0 : (span - 1) / step + 1;
  if (size > kMaxRange) {
    r.fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  }
  range.size = static_cast<int64_t>(size);
  return datum(Kind::kRange, &Datum::range, r.make(range));
}

// dict(mapping or pairs, **others); the entries have room for one more.
Dict build_dict(Rendering& r, const Arguments& args) {
  if (args.size > 1) r.fail("dict expected at most 1 argument, got {}", args.size);
  ListBuilder pairs(r);
  if (args.size == 1 && is_mapping(args.items[0])) {
    for (int64_t i = 0; i < *size_of(args.items[0]); ++i) {
      const Entry entry = dict_entry(r, args.items[0], i);
      pairs.push(r.make_pair(entry.key, entry.value));
    }
  } else if (args.size == 1) {
    const Datum list = to_list(r, args.items[0]);
    for (int64_t i = 0; i < list.list->size; ++i) {
      const Datum pair = to_list(r, list.list->items[i]);
      if (pair.list->size != 2) {
        r.fail("dictionary update sequence element #{} has length {}; 2 is required", i, pair.list->size);
      }
      pairs.push(pair);
    }
  }
  for (int64_t k = 0; k < args.num_keywords; ++k) {
    pairs.push(r.make_pair(string(args.keywords[k].name), args.keywords[k].value));
  }
  Entry* entries = r.array<Entry>(pairs.size());
  int64_t size = 0;
  for (int64_t i = 0; i < pairs.size(); ++i) {
    const Datum* pair = pairs.items()[i].list->items;
    dict_insert(r, entries, size, pair[0], pair[1]);
  }
  return {entries, size};
}

Datum dict(Rendering& r, const Datum&, const Arguments& args) {
  return dictionary(r.make(build_dict(r, args)));
}

Datum name_space(Rendering& r, const Datum&, const Arguments& args) {
  const Dict dict = build_dict(r, args);
  Entry* entries = r.array<Entry>(dict.size);
  std::copy(dict.entries, dict.entries + dict.size, entries);
  return datum(Kind::kNamespace, &Datum::name_space, r.make(Namespace{entries, dict.size, dict.size}));
}

Datum cycler(Rendering& r, const Datum&, const Arguments& args) {
  if (args.size == 0) r.fail("at least one item has to be provided");
  return datum(Kind::kCycler, &Datum::cycler, r.make(Cycler{args.items, args.size, 0}));
}

Datum joiner(Rendering& r, const Datum&, const Arguments& args) {
  return datum(Kind::kJoiner, &Datum::joiner, r.make(Joiner{args.has(0) ? args[0] : string(", "), false}));
}

Datum raise_exception(Rendering& r, const Datum&, const Arguments& args) {
  TextBuilder message(r);
  append_str(r, message, args[0]);
  r.raised_by_template(message.text());
}

std::tm system_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

Datum strftime_now(Rendering& r, const Datum&, const Arguments& args) {
  // A character after the format tells an empty result from one that does not fit.
  const std::string format = std::string(to_string_argument(r, args[0], "strftime_now")) + ".";
  const std::tm now = r.options.clock ? r.options.clock() : system_time();
  constexpr size_t kMaxBytes = size_t{1} << 16;
  std::string out(256, '\0');
  size_t size = 0;
  while ((size = std::strftime(out.data(), out.size(), format.c_str(), &now)) == 0) {
    if (out.size() >= kMaxBytes) r.fail("strftime_now: the text is longer than {} bytes", kMaxBytes);
    out.resize(4 * out.size());
  }
  return r.copy_string(std::string_view(out).substr(0, size - 1));
}

constexpr FunctionEntry kGlobals[] = {
    {"cycler", cycler, "*"},
    {"dict", dict, "*"},
    {"joiner", joiner, "[sep]"},
    {"namespace", name_space, "*"},
    {"raise_exception", raise_exception, "message"},
    {"range", range, "start [stop step]"},
    {"strftime_now", strftime_now, "format"},
};

}  // namespace

const FunctionEntry* find_global(std::string_view name) { return find_function(kGlobals, name); }

}  // namespace tessera::jinja
