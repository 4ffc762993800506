#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/data_input.h"
#include "cli/run/threads.h"
#include "cli/terminal/terminal.h"
#include "data/cache/pretokenized_rows.h"
#include "data/cache/token_cache.h"
#include "data/row_building.h"
#include "data/row_stream.h"
#include "data/rows/batch_plan.h"

namespace tessera {
namespace {

struct FileStats {
  int64_t num_rows = 0;
  int64_t num_tokens = 0;
};

struct DataStats {
  std::vector<int32_t> lengths;  // tokens of every row, uncut; ascending once all are read
  double padding_share = 0;
  int64_t num_targets = 0;
  int64_t num_empty = 0;
  int64_t num_bad = 0;     // not UTF-8 or not usable
  int64_t num_masked = 0;  // no label within max_length: dropped
  std::string first_problem;
  std::map<std::string, FileStats> files;
  int64_t size_bytes = 0;
  double runtime_s = 0;

  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const int32_t length : lengths) sum += length;
    return sum;
  }
};

// The share of what a trainer that pads computes, in batches of `batch_rows` in the order of Trainer's first
// epoch, that is padding.
double padding_share(const std::vector<int32_t>& lengths, int64_t batch_rows, int64_t max_length) {
  const auto num_rows = std::ssize(lengths);
  const std::vector<int64_t> order = torch_randperm(num_rows, /*seed=*/42);
  double computed = 0;
  double useful = 0;
  for (int64_t begin = 0; begin < num_rows; begin += batch_rows) {
    const int64_t end = std::min(begin + batch_rows, num_rows);
    int64_t longest = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = order[static_cast<size_t>(i)];
      const int64_t length = std::min<int64_t>(lengths[static_cast<size_t>(row)], max_length);
      longest = std::max(longest, length);
      useful += static_cast<double>(length);
    }
    computed += static_cast<double>(longest * (end - begin));
  }
  return computed == 0 ? 0 : 1 - useful / computed;
}

class DataStatsCommand : public Command {
 public:
  std::string name() const override { return "data stats"; }

  void declare_flags(FlagTable* table) override {
    input_.declare_flags(table);
    declare(table, "per_device_train_batch_size", &batch_rows_);
    declare(table, "json", &json_);
  }

  DataArguments* data_arguments() override { return &input_.data; }
  void run(FlagTable*) override {
    const OpenData data = open_data(input_);
    max_length_ = data.max_length;
    for (const std::string& line : data.plan.remarks) log_warning("{}", line);
    const Stopwatch watch;
    data.plan.is_pretokenized ? count_pretokenized(data) : count_documents(data);
    stats_.runtime_s = watch.seconds();
    for (const SourceFile& file : data.plan.files) stats_.size_bytes += file.stamp.size_bytes;
    stats_.padding_share = padding_share(stats_.lengths, batch_rows_, data.max_length);
    std::sort(stats_.lengths.begin(), stats_.lengths.end());
    if (stats_.lengths.empty()) {
      fail(ExitCode::kBadData, "the dataset is empty: {} without text, {} without a target, {} not usable{}",
           stats_.num_empty, stats_.num_masked, stats_.num_bad,
           stats_.first_problem.empty() ? "" : "; the first: " + stats_.first_problem);
    }
    json_ ? print_json(data) : print_text(data);
  }

 private:
  // With keeps_masked, a row is dropped for its labels only if it is cut.
  void count(const std::string& file, std::span<const int32_t> ids, std::span<const int32_t> labels,
             bool keeps_masked) {
    const bool is_cut = std::ssize(ids) > max_length_;
    const auto kept = labels.first(std::min(labels.size(), static_cast<size_t>(max_length_)));
    if (!input_.packing && !kept.empty() && (is_cut || !keeps_masked) && is_masked(kept)) {
      ++stats_.num_masked;
      return;
    }
    stats_.lengths.push_back(static_cast<int32_t>(std::min<int64_t>(std::ssize(ids), INT32_MAX)));
    stats_.num_targets += count_targets(std::ssize(ids), labels, {});
    FileStats& of_file = stats_.files[file];
    ++of_file.num_rows;
    of_file.num_tokens += std::ssize(ids);
  }

  void count_documents(const OpenData& data) {
    int64_t total_bytes = 1;
    for (const SourceFile& file : data.plan.files) total_bytes += file.stamp.size_bytes;
    ThreadPool pool(threads_for_pool());
    RowStream stream(data.plan, data.options, data.tokenizer ? &*data.tokenizer : nullptr, data.vocab_size,
                     &pool);
    StatusLine status;
    while (stream.next()) {
      for (size_t i = 0; i < stream.rows().size(); ++i) {
        const TokenizedRow& row = stream.rows()[i];
        if (row.error) {
          if (!may_skip(row.error, data.options, &stats_.first_problem)) std::rethrow_exception(row.error);
          ++stats_.num_bad;
        } else if (row.is_invalid) {
          ++stats_.num_bad;
        } else if (row.ids.empty()) {
          ++stats_.num_empty;
        } else {
          count(stream.documents()[i].file->string(), row.ids, row.labels, row.keeps_masked);
        }
      }
      status.show(fmt::format("reading: {:.0f} %", 100 * static_cast<double>(stream.bytes_read()) /
                                                       static_cast<double>(total_bytes)));
    }
  }

  void count_pretokenized(const OpenData& data) {
    for (const std::filesystem::path& path : data.plan.paths()) {
      read_pretokenized_rows({&path, 1}, data.vocab_size, INT32_MAX, data.plan.has_labels,
                             data.options.reads_completion_mask, data.options.drops_masked_ids, INT64_MAX,
                             [&](auto ids, auto labels, auto) { count(path.string(), ids, labels, true); });
    }
  }

  int64_t quantile(double share) const {
    const auto last = static_cast<double>(stats_.lengths.size() - 1);
    return stats_.lengths[static_cast<size_t>(share * last + 0.5)];
  }

  // Rows longer than max_length, and the tokens beyond it.
  std::pair<int64_t, int64_t> cut(int64_t max_length) const {
    std::pair<int64_t, int64_t> rows_and_tokens = {0, 0};
    for (const int32_t length : stats_.lengths) {
      if (length <= max_length) continue;
      ++rows_and_tokens.first;
      rows_and_tokens.second += length - max_length;
    }
    return rows_and_tokens;
  }

  static double percent(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
  }

  void print_text(const OpenData& data) {
    const auto num_rows = std::ssize(stats_.lengths);
    const int64_t num_tokens = stats_.num_tokens();
    const auto [cut_rows, cut_tokens] = cut(data.max_length);
    print("rows        {} in {}\n", format_count(num_rows),
          format_count(std::ssize(data.plan.files), "file"));
    if (stats_.num_empty > 0) print("empty       {}\n", format_count(stats_.num_empty));
    if (stats_.num_bad > 0)
      print("not usable  {}{}\n", format_count(stats_.num_bad),
            stats_.first_problem.empty() ? "" : ": the first: " + stats_.first_problem);
    if (stats_.num_masked > 0) print("no target   {}: dropped\n", format_count(stats_.num_masked));
    print("tokens      {}, {} of them targets ({:.1f} %)\n", format_count(num_tokens),
          format_count(stats_.num_targets), percent(stats_.num_targets, num_tokens));
    print("length      mean {:.0f}, median {}, 90 % {}, 99 % {}, longest {}\n",
          static_cast<double>(num_tokens) / static_cast<double>(num_rows), quantile(0.5), quantile(0.9),
          quantile(0.99), stats_.lengths.back());
    print(
        "truncated   {} ({:.1f} %) at max_length {}: {} ({:.1f} %); none with --packing{}\n",
        format_count(cut_rows, "row"), percent(cut_rows, num_rows), data.max_length,
        format_count(cut_tokens, "token"), percent(cut_tokens, num_tokens),
        packing_of(data.plan, Packing::kByRows) == Packing::kIsolated ? "" : " --packing_strategy bfd_split");
    print("padding     {:.1f} % of what a trainer computes that pads batches of {}; here none\n",
          100 * stats_.padding_share, format_count(batch_rows_, "row"));
    print("speed       {}/s, {} tokens/s\n",
          format_bytes(static_cast<int64_t>(static_cast<double>(stats_.size_bytes) / stats_.runtime_s)),
          format_count(static_cast<int64_t>(static_cast<double>(num_tokens) / stats_.runtime_s)));
    print_histogram();
    if (stats_.files.size() > 1) print_files(num_tokens);
  }

  // Rows by length, in powers of two.
  std::map<int, int64_t> histogram() const {
    std::map<int, int64_t> buckets;
    for (const int32_t length : stats_.lengths) ++buckets[std::bit_width(static_cast<uint32_t>(length)) - 1];
    return buckets;
  }

  void print_histogram() const {
    const std::map<int, int64_t> buckets = histogram();
    int64_t most = 0;
    for (const auto& [bucket, rows] : buckets) most = std::max(most, rows);
    const int64_t columns = std::clamp<int64_t>(terminal_width() - 40, 10, 40);
    print("\n{:>17}  {:>10}\n", "tokens", "rows");
    for (int bucket = buckets.begin()->first; bucket <= buckets.rbegin()->first; ++bucket) {
      const auto found = buckets.find(bucket);
      const int64_t rows = found == buckets.end() ? 0 : found->second;
      print("{:>8} {:>8}  {:>10}  {}\n", int64_t{1} << bucket, (int64_t{2} << bucket) - 1, format_count(rows),
            bar_text(static_cast<double>(rows) / static_cast<double>(most), columns, terminal_is_utf8()));
    }
  }

  void print_files(int64_t num_tokens) const {
    print("\n{:>10}  {:>12}  {:>6}  {}\n", "rows", "tokens", "share", "file");
    for (const auto& [file, stats] : stats_.files) {
      print("{:>10}  {:>12}  {:>5.1f}%  {}\n", format_count(stats.num_rows), format_count(stats.num_tokens),
            percent(stats.num_tokens, num_tokens), file);
    }
  }

  void print_json(const OpenData& data) {
    const auto [cut_rows, cut_tokens] = cut(data.max_length);
    nlohmann::ordered_json json = {
        {"num_rows", stats_.lengths.size()},
        {"num_tokens", stats_.num_tokens()},
        {"num_target_tokens", stats_.num_targets},
        {"num_empty_rows", stats_.num_empty},
        {"num_bad_rows", stats_.num_bad},
        {"num_masked_rows", stats_.num_masked},
        {"max_length", data.max_length},
        {"num_truncated_rows", cut_rows},
        {"num_truncated_tokens", cut_tokens},
        {"padding_share", stats_.padding_share},
        {"length_quantiles",
         {{"0.5", quantile(0.5)},
          {"0.9", quantile(0.9)},
          {"0.99", quantile(0.99)},
          {"1", stats_.lengths.back()}}},
        {"runtime_s", stats_.runtime_s},
        {"bytes_per_second", static_cast<double>(stats_.size_bytes) / stats_.runtime_s},
    };
    for (const auto& [bucket, rows] : histogram())
      json["histogram"].push_back({{"min_tokens", int64_t{1} << bucket}, {"num_rows", rows}});
    for (const auto& [file, stats] : stats_.files)
      json["files"].push_back(
          {{"file", file}, {"num_rows", stats.num_rows}, {"num_tokens", stats.num_tokens}});
    print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  DataInput input_;
  int64_t batch_rows_ = 8;
  bool json_ = false;
  int64_t max_length_ = 0;
  DataStats stats_;
};

}  // namespace

std::unique_ptr<Command> make_data_stats_command() { return std::make_unique<DataStatsCommand>(); }

}  // namespace tessera
