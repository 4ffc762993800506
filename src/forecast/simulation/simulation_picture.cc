#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "forecast/simulation/simulation.h"
#include "forecast/text/drawing.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

constexpr double kClustersWidth = 960, kClustersHeight = 460;
constexpr double kPlotTop = 84, kPlotBottom = 370;
constexpr double kBarsLeft = 84, kBarsRight = 460, kLinesLeft = 560, kLinesRight = 890;
// By Bottleneck; distinguishable in print and without red and green.
constexpr const char* kKindColors[kNumBottlenecks] = {"#9fb3c8", "#0b69a3", "#47a3f3", "#7c5e10",
                                                      "#f7c948", "#829ab1", "#ba2525"};
constexpr const char* kLineColors[] = {"#0b69a3", "#ba2525", "#7c5e10", "#52606d", "#47a3f3", "#8719e0"};

class ClusterPicture {
 public:
  explicit ClusterPicture(const std::vector<SimulatedCluster>& clusters)
      : clusters_(clusters),
        drawing_(kClustersWidth, kClustersHeight, "Steps on clusters of several sizes", description()) {}

  std::string draw() {
    draw_share_axis(kBarsLeft, kBarsRight, "% of a step");
    for (size_t i = 0; i < clusters_.size(); ++i) draw_bar(i);
    drawing_.text((kBarsLeft + kBarsRight) / 2, kPlotBottom + 38, "middle",
                  "nodes; on top the seconds of a step");
    draw_legend();
    if (clusters_.front().failures) draw_useful();
    return drawing_.svg();
  }

 private:
  std::string description() const {
    std::string words = "By number of nodes:";
    for (const SimulatedCluster& cluster : clusters_) {
      words += fmt::format(" {} nodes: {} s a step, efficiency {:.1f} %, limited by {}", cluster.num_nodes,
                           three_digits(cluster.step.step_s), 100 * cluster.efficiency(),
                           bottleneck_name(cluster.step.bottleneck()));
      if (cluster.useful) words += fmt::format(", useful time {:.1f} %", 100 * cluster.useful->useful_share);
      words += ";";
    }
    words.back() = '.';
    return words;
  }

  static double height(double share) { return kPlotBottom - share * (kPlotBottom - kPlotTop); }

  void draw_share_axis(double left, double right, const char* name) {
    for (int tenth = 0; tenth <= 10; tenth += 2) {
      drawing_.line(left, height(tenth / 10.0), right, height(tenth / 10.0), "#e4e7eb");
      drawing_.text(left - 8, height(tenth / 10.0) + 4, "end", fmt::format("{}", 10 * tenth));
    }
    drawing_.line(left, kPlotBottom, right, kPlotBottom, "#7b8794");
    drawing_.line(left, kPlotTop, left, kPlotBottom, "#7b8794");
    drawing_.upright_text(left - 44, (kPlotTop + kPlotBottom) / 2, name);
  }

  void draw_bar(size_t index) {
    const SimulatedCluster& cluster = clusters_[index];
    const double slot = (kBarsRight - kBarsLeft) / static_cast<double>(clusters_.size());
    const double left = kBarsLeft + (static_cast<double>(index) + 0.15) * slot;
    double share = 0;
    for (int kind = 0; kind < kNumBottlenecks; ++kind) {
      const double part = cluster.step.seconds[kind] / cluster.step.step_s;
      if (part <= 0) continue;
      drawing_.add(fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} nodes, "
          "{}: {:.1f} %</title></rect>\n",
          left, height(share + part), 0.7 * slot, height(share) - height(share + part), kKindColors[kind],
          cluster.num_nodes, bottleneck_name(static_cast<Bottleneck>(kind)), 100 * part));
      share += part;
    }
    drawing_.text(left + 0.35 * slot, kPlotBottom + 18, "middle", format_count(cluster.num_nodes));
    drawing_.text(left + 0.35 * slot, kPlotTop - 8, "middle", three_digits(cluster.step.step_s));
  }

  void draw_legend() {
    double x = kBarsLeft;
    for (int kind = 0; kind < kNumBottlenecks; ++kind) {
      const std::string name(bottleneck_name(static_cast<Bottleneck>(kind)));
      drawing_.add(fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                               x, kPlotBottom + 58, kKindColors[kind]));
      drawing_.text(x + 14, kPlotBottom + 67, "start", name);
      x += 30 + 6.6 * static_cast<double>(name.size());
    }
  }

  // Useful time over the minutes between two checkpoints.
  void draw_useful() {
    constexpr double kLeastS = 60, kMostS = 24 * 3600;
    const LogAxis x(kLeastS / 60, kMostS / 60, kLinesLeft, kLinesRight);
    draw_share_axis(kLinesLeft, kLinesRight, "% of the time useful");
    for (const double minutes : {1.0, 10.0, 60.0, 360.0, 1440.0}) {
      drawing_.line(x.pixel(minutes), kPlotTop, x.pixel(minutes), kPlotBottom, "#e4e7eb");
      drawing_.text(x.pixel(minutes), kPlotBottom + 18, "middle", tick_text(minutes));
    }
    drawing_.text((kLinesLeft + kLinesRight) / 2, kPlotBottom + 38, "middle",
                  "minutes between checkpoints; a dot at the best");
    double lowest_label = 0;
    for (size_t i = 0; i < clusters_.size(); ++i) {
      const SimulatedCluster& cluster = clusters_[i];
      const char* color = kLineColors[i % std::size(kLineColors)];
      std::string path;
      double last_y = kPlotBottom;
      constexpr double kFactor = 1.25;
      for (double seconds = kLeastS; seconds <= kMostS; seconds *= kFactor) {
        const auto steps = std::max<int64_t>(1, std::llround(seconds / cluster.step.step_s));
        last_y = height(share_with(cluster, steps));
        path += fmt::format("{:.1f},{:.1f} ",
                            x.pixel(std::max(1.0, static_cast<double>(steps) * cluster.step.step_s / 60)),
                            last_y);
      }
      drawing_.add(fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                               path, color));
      const UsefulTime& best = cluster.best_useful ? *cluster.best_useful : *cluster.useful;
      const double minutes = static_cast<double>(best.checkpoint_steps) * cluster.step.step_s / 60;
      drawing_.add(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n",
                               x.pixel(std::clamp(minutes, 1.0, kMostS / 60)), height(best.useful_share),
                               color));
      constexpr double kLineLabelHeight = 13;
      lowest_label = std::max(last_y + 4, lowest_label + kLineLabelHeight);
      drawing_.text(kLinesRight + 6, lowest_label, "start", format_count(cluster.num_nodes));
    }
  }
  static double share_with(const SimulatedCluster& cluster, int64_t steps) {
    return useful_time(*cluster.failures, cluster.num_nodes, cluster.step.step_s, steps).useful_share;
  }

  const std::vector<SimulatedCluster>& clusters_;
  Drawing drawing_;
};

}  // namespace

std::string simulation_picture(const std::vector<SimulatedCluster>& clusters) {
  return ClusterPicture(clusters).draw();
}

}  // namespace tessera
