#include "forecast/instances/search_picture.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "base/text.h"
#include "forecast/text/drawing.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

constexpr double kPictureWidth = 960, kPictureHeight = 600;
constexpr double kLeft = 84, kRight = 930, kTop = 64, kBottom = 530;
constexpr double kCharWidth = 6.4, kLabelHeight = 14;  // of the 11 px labels, generously

struct Box {
  double left, top, right, bottom;
  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
  double distance(double x, double y) const {
    return std::hypot(std::max({left - x, 0.0, x - right}), std::max({top - y, 0.0, y - bottom}));
  }
};

// Finds room for labels beside their points.
class Labels {
 public:
  void add_point(double x, double y) {
    points_.push_back({x - kPointRadius, y - kPointRadius, x + kPointRadius, y + kPointRadius});
    taken_.push_back(points_.back());
  }

  // The baseline's start of a label for the point at (x, y), if there is room nearer to it than to another.
  bool place(double x, double y, size_t length, double* label_x, double* label_y) {
    const double width = static_cast<double>(length) * kCharWidth;
    const double offsets[][2] = {{10, 4},           {-width / 2, -12}, {-width / 2, 21},  {10, -9},
                                 {10, 17},          {-width - 10, 4},  {-width - 10, -9}, {-width - 10, 17},
                                 {-width / 2, -26}, {-width / 2, 35}};
    for (const auto& [dx, dy] : offsets) {
      const Box box = {x + dx, y + dy - kLabelHeight + 3, x + dx + width, y + dy + 3};
      if (box.left < kLeft || box.right > kPictureWidth - 4 || box.top < kTop - 16 || box.bottom > kBottom)
        continue;
      const auto overlaps = [&](const Box& other) { return box.overlaps(other); };
      const double own = box.distance(x, y);
      const auto is_nearer = [&](const Box& point) {
        const double px = (point.left + point.right) / 2, py = (point.top + point.bottom) / 2;
        return box.distance(px, py) < own;
      };
      if (std::ranges::any_of(taken_, overlaps) || std::ranges::any_of(points_, is_nearer)) continue;
      taken_.push_back(box);
      *label_x = x + dx;
      *label_y = y + dy;
      return true;
    }
    return false;
  }

 private:
  static constexpr double kPointRadius = 6;

  std::vector<Box> points_;
  std::vector<Box> taken_;  // points and labels
};

std::string point_name(const SearchResult& result, const Combination& each) {
  const std::string& name = result.instances[each.instance].name;
  return each.layout.num_nodes == 1 ? name : fmt::format("{} x {}", each.layout.num_nodes, name);
}

class Picture {
 public:
  Picture(const SearchResult& result, const SearchView& view)
      : result_(result), view_(view), front_(front_of(result, view)) {
    SearchView all = view;
    all.order = SearchOrder::kTime;
    all.top = std::ssize(result.combinations);
    points_ = ranked(result, all);
    drawing_.emplace(kPictureWidth, kPictureHeight, "Hours and cost of the job on each machine",
                     description());
  }

  std::string draw() {
    text(kLeft, 48, "start",
         fmt::format("{} parameters, {} tokens; {} prices; the line joins what nothing beats in both",
                     format_count(result_.num_parameters), format_count(std::llround(result_.job.num_tokens)),
                     view_.spot ? "spot" : "on-demand"));
    if (points_.empty()) {
      text((kLeft + kRight) / 2, (kTop + kBottom) / 2, "middle", "No combination fits.");
    } else {
      const auto [fast, slow] = std::ranges::minmax(points_, {}, [&](size_t i) { return hours(i); });
      const auto [cheap, dear] = std::ranges::minmax(points_, {}, [&](size_t i) { return money(i); });
      const LogAxis x(hours(fast), hours(slow), kLeft, kRight);
      const LogAxis y(money(cheap), money(dear), kBottom, kTop);
      draw_axes(x, y);
      draw_points(x, y);
      draw_front(x, y);
    }
    return drawing_->svg();
  }

 private:
  double hours(size_t i) const { return result_.combinations[i].hours; }
  double money(size_t i) const { return money_of(result_.combinations[i], view_); }

  std::string description() const {
    std::string words = fmt::format("{} of {}. The fastest to the cheapest that nothing beats in both:",
                                    format_count(std::ssize(points_), "combination"),
                                    format_count(std::llround(result_.job.num_tokens), "token"));
    for (const size_t i : front_) {
      words += fmt::format(" {} in {} hours for {} USD;", point_name(result_, result_.combinations[i]),
                           three_digits(hours(i)), three_digits(money(i)));
    }
    words.back() = '.';
    return words;
  }

  void text(double x, double y, const char* anchor, const std::string& words) {
    drawing_->text(x, y, anchor, words);
  }
  void line(double x1, double y1, double x2, double y2, const char* color) {
    drawing_->line(x1, y1, x2, y2, color);
  }

  void draw_axes(const LogAxis& x, const LogAxis& y) {
    for (const double value : x.ticks()) {
      line(x.pixel(value), kTop, x.pixel(value), kBottom, "#e4e7eb");
      text(x.pixel(value), kBottom + 18, "middle", tick_text(value));
    }
    for (const double value : y.ticks()) {
      line(kLeft, y.pixel(value), kRight, y.pixel(value), "#e4e7eb");
      text(kLeft - 8, y.pixel(value) + 4, "end", tick_text(value));
    }
    line(kLeft, kBottom, kRight, kBottom, "#7b8794");
    line(kLeft, kTop, kLeft, kBottom, "#7b8794");
    text((kLeft + kRight) / 2, kBottom + 42, "middle", "hours");
    drawing_->upright_text(24, (kTop + kBottom) / 2, "USD");
  }

  void draw_point(size_t i, const LogAxis& x, const LogAxis& y, double radius, const char* style) {
    drawing_->add(fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" {}><title>{}: {} hours, {} USD</title></circle>\n",
        x.pixel(hours(i)), y.pixel(money(i)), radius, style,
        svg_escaped(point_name(result_, result_.combinations[i])), three_digits(hours(i)),
        three_digits(money(i))));
  }

  void draw_points(const LogAxis& x, const LogAxis& y) {
    for (const size_t i : points_) {
      if (std::ranges::find(front_, i) != front_.end()) continue;
      draw_point(i, x, y, 3, "fill=\"#9aa5b1\" fill-opacity=\"0.7\"");
    }
  }

  void draw_front(const LogAxis& x, const LogAxis& y) {
    std::string path;
    Labels labels;
    for (const size_t i : front_) {
      const double px = x.pixel(hours(i)), py = y.pixel(money(i));
      path += fmt::format("{:.1f},{:.1f} ", px, py);
      labels.add_point(px, py);
    }
    drawing_->add(fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#0b69a3\" stroke-width=\"1.5\"/>\n", path));
    const std::optional<size_t> best = best_of(result_, view_);
    for (const size_t i : front_) {
      draw_point(i, x, y, i == best ? 7 : 5, "fill=\"#0b69a3\" stroke=\"#ffffff\"");
    }
    // The recommended one and the two ends first: where room is short, they are the ones to name.
    std::vector<size_t> order;
    if (best && std::ranges::find(front_, *best) != front_.end()) order.push_back(*best);
    order.insert(order.end(), {front_.front(), front_.back()});
    order.insert(order.end(), front_.begin(), front_.end());
    std::vector<size_t> named;
    for (const size_t i : order) {
      if (std::ranges::find(named, i) != named.end()) continue;
      named.push_back(i);
      const std::string name = point_name(result_, result_.combinations[i]);
      double label_x = 0, label_y = 0;
      if (!labels.place(x.pixel(hours(i)), y.pixel(money(i)), name.size(), &label_x, &label_y)) continue;
      drawing_->add(fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" stroke=\"#ffffff\" stroke-width=\"3\" "
          "paint-order=\"stroke\">{}</text>\n",
          label_x, label_y, svg_escaped(name)));
    }
  }

  const SearchResult& result_;
  const SearchView& view_;
  std::vector<size_t> front_;
  std::vector<size_t> points_;
  std::optional<Drawing> drawing_;
};

}  // namespace

std::string search_picture(const SearchResult& result, const SearchView& view) {
  return Picture(result, view).draw();
}

}  // namespace tessera
