#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/data_input.h"
#include "cli/terminal/terminal.h"
#include "cli/threads.h"
#include "data/row_building.h"
#include "data/rows/row_statistics.h"

namespace tessera {
namespace {

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
    const Stopwatch watch;
    ThreadPool pool(threads_for_pool());
    StatusLine status;
    RowStatisticsOptions options;
    options.max_length = data.max_length;
    options.packing = input_.packing;
    options.padded_batch = batch_rows_;
    stats_ =
        row_statistics(data.plan, data.options, data.tokenizer ? &*data.tokenizer : nullptr, data.vocab_size,
                       options, &pool, [&](double share) { status.show("reading", share); });
    runtime_s_ = watch.seconds();
    json_ ? print_json() : print_text(data);
  }

 private:
  static double percent(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
  }

  void print_text(const OpenData& data) const {
    const auto num_rows = std::ssize(stats_.lengths);
    const int64_t num_tokens = stats_.num_tokens();
    const int64_t cut_rows = stats_.num_cut_rows, cut_tokens = stats_.num_cut_tokens;
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
          static_cast<double>(num_tokens) / static_cast<double>(num_rows), stats_.quantile(0.5),
          stats_.quantile(0.9), stats_.quantile(0.99), stats_.lengths.back());
    print_side("source", stats_.source_lengths);
    print_side("target", stats_.target_lengths);
    print("truncated   {} ({:.1f} %) at {}: {} ({:.1f} %){}\n", format_count(cut_rows, "row"),
          percent(cut_rows, num_rows), length_limits_text(data.options), format_count(cut_tokens, "token"),
          percent(cut_tokens, num_tokens), packing_advice(data));
    print("padding     {:.1f} % of what a trainer computes that pads batches of {}; here none\n",
          100 * stats_.padding_share, format_count(batch_rows_, "row"));
    print("speed       {}/s, {} tokens/s\n",
          format_bytes(static_cast<int64_t>(static_cast<double>(stats_.size_bytes) / runtime_s_)),
          format_count(static_cast<int64_t>(static_cast<double>(num_tokens) / runtime_s_)));
    print_histogram();
    if (stats_.files.size() > 1) print_files(num_tokens);
  }

  // The lengths of sources or targets, as they are cut.
  static void print_side(const char* name, const std::vector<int32_t>& lengths) {
    if (lengths.empty()) return;
    const double sum = std::accumulate(lengths.begin(), lengths.end(), 0.0);
    print("{}      mean {:.0f}, median {}, longest {}\n", name, sum / static_cast<double>(lengths.size()),
          lengths[(lengths.size() - 1) / 2], lengths.back());
  }

  static std::string packing_advice(const OpenData& data) {
    if (data.options.source_target) return "";
    const bool in_order = packing_of(data.plan, Packing::kByRows) == Packing::kIsolated;
    return std::string("; none with --packing") + (in_order ? "" : " --packing_strategy bfd_split");
  }

  void print_histogram() const {
    const std::map<int, int64_t> buckets = stats_.histogram();
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

  void print_json() const {
    const int64_t cut_rows = stats_.num_cut_rows, cut_tokens = stats_.num_cut_tokens;
    nlohmann::ordered_json json = {
        {"num_rows", stats_.lengths.size()},
        {"num_tokens", stats_.num_tokens()},
        {"num_target_tokens", stats_.num_targets},
        {"num_empty_rows", stats_.num_empty},
        {"num_bad_rows", stats_.num_bad},
        {"num_masked_rows", stats_.num_masked},
        {"max_length", stats_.max_length},
        {"num_truncated_rows", cut_rows},
        {"num_truncated_tokens", cut_tokens},
        {"padding_share", stats_.padding_share},
        {"length_quantiles",
         {{"0.5", stats_.quantile(0.5)},
          {"0.9", stats_.quantile(0.9)},
          {"0.99", stats_.quantile(0.99)},
          {"1", stats_.lengths.back()}}},
        {"runtime_s", runtime_s_},
        {"bytes_per_second", static_cast<double>(stats_.size_bytes) / runtime_s_},
    };
    if (!stats_.source_lengths.empty()) {
      const auto sum = [](const std::vector<int32_t>& lengths) {
        return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
      };
      json["num_source_tokens"] = sum(stats_.source_lengths);
      json["max_source_tokens"] = stats_.source_lengths.back();
      json["max_target_tokens"] = stats_.target_lengths.back();
    }
    for (const auto& [bucket, rows] : stats_.histogram())
      json["histogram"].push_back({{"min_tokens", int64_t{1} << bucket}, {"num_rows", rows}});
    for (const auto& [file, stats] : stats_.files)
      json["files"].push_back(
          {{"file", file}, {"num_rows", stats.num_rows}, {"num_tokens", stats.num_tokens}});
    print("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }

  DataInput input_;
  int64_t batch_rows_ = 8;
  bool json_ = false;
  RowStatistics stats_;
  double runtime_s_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_data_stats_command() { return std::make_unique<DataStatsCommand>(); }

}  // namespace tessera
