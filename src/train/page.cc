// A run as one page: plots drawn here, in SVG, so that the file holds no program and asks nobody for anything.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "train/log.h"

namespace tessera::train {
namespace {

constexpr double kWidth = 720.0;
constexpr double kHeight = 260.0;
constexpr double kLeft = 64.0;
constexpr double kRight = 16.0;
constexpr double kTop = 12.0;
constexpr double kBottom = 34.0;

struct Series {
  std::string name;
  std::string css;  // a class of the style sheet
  std::vector<std::pair<double, double>> points;
};

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char byte : text) {
    switch (byte) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += byte;
    }
  }
  return out;
}

// A round step that gives at most `most` marks over a range.
double RoundStep(double range, int most) {
  if (!(range > 0.0)) return 1.0;
  const double rough = range / most;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10.0 * power;
}

class Plot {
 public:
  Plot(std::string title, std::vector<Series> series) : title_(std::move(title)), series_(std::move(series)) {
    bool is_first = true;
    for (const Series& one : series_) {
      for (const auto& [x, y] : one.points) {
        if (is_first) low_x_ = high_x_ = x, low_y_ = high_y_ = y;
        is_first = false;
        low_x_ = std::min(low_x_, x);
        high_x_ = std::max(high_x_, x);
        low_y_ = std::min(low_y_, y);
        high_y_ = std::max(high_y_, y);
      }
    }
    step_y_ = RoundStep(high_y_ - low_y_, 6);
    low_y_ = std::floor(low_y_ / step_y_) * step_y_;
    high_y_ = std::max(std::ceil(high_y_ / step_y_) * step_y_, low_y_ + step_y_);
    if (high_x_ <= low_x_) high_x_ = low_x_ + 1.0;
  }

  std::string Draw() const {
    std::string svg = fmt::format(
        "<figure><figcaption>{}</figcaption>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" "
        "aria-label=\"{}\">\n",
        Escaped(title_), kWidth, kHeight, Escaped(title_));
    for (int i = 0; low_y_ + i * step_y_ <= high_y_ + step_y_ / 2; ++i) {
      const double value = low_y_ + i * step_y_;
      svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft,
                         kWidth - kRight, Y(value), Y(value));
      svg += fmt::format("<text class=\"y\" x=\"{}\" y=\"{:.1f}\">{:.6g}</text>\n", kLeft - 8, Y(value) + 4, value);
    }
    const double step_x = std::max(1.0, RoundStep(high_x_ - low_x_, 8));
    for (double x = std::ceil(low_x_ / step_x) * step_x; x <= high_x_; x += step_x)
      svg += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{}\">{:.6g}</text>\n", X(x), kHeight - 14, x);
    for (const Series& one : series_) svg += Line(one);
    svg += "</svg>\n<p class=\"legend\">";
    for (const Series& one : series_)
      svg += fmt::format("<span><i class=\"{}\"></i>{}</span> ", one.css, Escaped(one.name));
    return svg + "</p></figure>\n";
  }

 private:
  double X(double x) const { return kLeft + (x - low_x_) / (high_x_ - low_x_) * (kWidth - kLeft - kRight); }
  double Y(double y) const { return kTop + (high_y_ - y) / (high_y_ - low_y_) * (kHeight - kTop - kBottom); }

  std::string Line(const Series& one) const {
    std::string path;
    for (const auto& [x, y] : one.points) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", X(x), Y(y));
    std::string svg = fmt::format("<path class=\"{}\" d=\"{}\"/>\n", one.css, path);
    if (one.points.size() > 40) return svg;
    for (const auto& [x, y] : one.points) {
      svg += fmt::format(
          "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"><title>step {}: {:.4f}</title>"
          "</circle>\n",
          one.css, X(x), Y(y), x, y);
    }
    return svg;
  }

  std::string title_;
  std::vector<Series> series_;
  double low_x_ = 0.0;
  double high_x_ = 1.0;
  double low_y_ = 0.0;
  double high_y_ = 1.0;
  double step_y_ = 1.0;
};

Series SeriesOf(std::string name, std::string css, const std::vector<LogPoint>& points,
                const std::function<std::optional<double>(const LogPoint&)>& value) {
  Series series{std::move(name), std::move(css), {}};
  for (const LogPoint& point : points) {
    const std::optional<double> y = value(point);
    if (y && std::isfinite(*y)) series.points.emplace_back(static_cast<double>(point.step), *y);
  }
  return series;
}

std::string Row(std::string_view name, std::string_view value) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", Escaped(name), Escaped(value));
}
std::string Number(const std::optional<double>& value, const char* unit) {
  return value ? fmt::format("{:.4f} {}", *value, unit) : "none";
}

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tessera: a training run</title>
<style>
:root { color-scheme: light dark; --ink: #1c2330; --paper: #ffffff; --faint: #d9dee7; --soft: #5b6675;
  --a: #1f66d1; --b: #c2410c; --c: #6b7280; --d: #0f7b46; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --paper: #12161d; --faint: #2b3340; --soft: #9aa5b5;
  --a: #6ea8fe; --b: #fb923c; --c: #9ca3af; --d: #4ade80; } }
body { margin: 2rem auto; max-width: 46rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } figure { margin: 1.5rem 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
text.y { text-anchor: end; } text.x { text-anchor: middle; } line.grid { stroke: var(--faint); }
path { fill: none; stroke-width: 2; } path.a, circle.a { stroke: var(--a); } path.b, circle.b { stroke: var(--b); }
path.c, circle.c { stroke: var(--c); } path.c { stroke-dasharray: 5 4; } path.d, circle.d { stroke: var(--d); }
circle { fill: var(--paper); stroke-width: 2; }
.legend { color: var(--soft); margin: 0; } .legend span { margin-right: 1rem; white-space: nowrap; }
.legend i { display: inline-block; width: 1rem; height: 3px; margin-right: .4rem; vertical-align: middle; }
i.a { background: var(--a); } i.b { background: var(--b); } i.c { background: var(--c); } i.d { background: var(--d); }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 500; color: var(--soft); }
th, td { padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--faint); vertical-align: top; overflow-wrap: anywhere; }
</style></head><body>
<h1>A training run</h1>
)";

std::string Facts(const TrainReceipt& receipt) {
  std::string table = "<table>\n";
  table += Row("ended", receipt.ended);
  table += Row("steps", fmt::format("{} to {}", receipt.first_step, receipt.last_step));
  table += Row("loss of the last step", Number(receipt.last_loss, "nats a token"));
  table += Row("held-out loss", Number(receipt.held_out_loss, "nats a token"));
  table += Row("a bigram model of the same rows", Number(receipt.bigram_loss, "nats a token"));
  table += Row("speed", fmt::format("{:.0f} tokens/s", receipt.tokens_per_s));
  table += Row("goodput", fmt::format("{:.3f} of {:.1f} s", receipt.goodput.goodput, receipt.goodput.wall_s));
  for (size_t i = 0; i < kNumSpans; ++i)
    table += Row(ToText(static_cast<SpanKind>(i)), fmt::format("{:.2f} s", receipt.goodput.spans_s[i]));
  table += Row("idle", fmt::format("{:.2f} s", receipt.goodput.idle_s));
  table += Row("programs compiled", std::to_string(receipt.compiles));
  for (const Substitute& substitute : receipt.substitutes) table += Row(substitute.key, substitute.name);
  for (size_t i = 0; i < receipt.telemetry.size(); ++i)
    table += Row(fmt::format("sinks and spikes of layer {}", i), receipt.telemetry[i].telemetry_class);
  table += Row("target", receipt.target);
  table += Row("model", receipt.model_digest);
  table += Row("data", receipt.data_digest);
  return table + "</table>\n</body></html>\n";
}

// Of each layer, by telemetry; nothing where there was none.
std::string LayerPlot(const std::string& title, const std::vector<LogPoint>& points, double LayerTelemetry::*value) {
  size_t layers = 0;
  for (const LogPoint& point : points) layers = std::max(layers, point.layers.size());
  std::vector<Series> series;
  constexpr std::array<const char*, 4> kStyles = {"a", "b", "d", "c"};
  for (size_t i = 0; i < layers; ++i) {
    series.push_back(SeriesOf(fmt::format("layer {}", i), kStyles[i % kStyles.size()], points,
                              [i, value](const LogPoint& point) -> std::optional<double> {
                                if (i >= point.layers.size()) return std::nullopt;
                                return point.layers[i].*value;
                              }));
  }
  return series.empty() ? "" : Plot(title, std::move(series)).Draw();
}

}  // namespace

std::string ToHtml(const TrainReceipt& receipt, const std::vector<LogPoint>& points) {
  std::string page = kHead;
  if (!points.empty()) {
    std::vector<Series> losses;
    losses.push_back(SeriesOf("training", "a", points, [](const LogPoint& point) { return point.loss; }));
    Series held_out = SeriesOf("held out", "b", points, [](const LogPoint& point) { return point.held_out_loss; });
    if (!held_out.points.empty()) losses.push_back(std::move(held_out));
    if (receipt.bigram_loss) {
      const auto first = static_cast<double>(points.front().step);
      const auto last = static_cast<double>(points.back().step);
      losses.push_back({"bigram, held out", "c", {{first, *receipt.bigram_loss}, {last, *receipt.bigram_loss}}});
    }
    page += Plot("Loss, nats a token, by step", std::move(losses)).Draw();
    page += Plot("Goodput: the share of time that was spent in steps",
                 {SeriesOf("goodput", "d", points, [](const LogPoint& point) { return point.goodput; })})
                .Draw();
    page += Plot("Tokens a second",
                 {SeriesOf("tokens/s", "a", points, [](const LogPoint& point) { return point.tokens_per_s; })})
                .Draw();
    page += LayerPlot("Share of attention on the row's first token", points, &LayerTelemetry::sink_ratio);
    page += LayerPlot("Share of attention on a document's first token", points, &LayerTelemetry::document_sink_ratio);
    page += LayerPlot("Spikes: the largest magnitude behind a layer", points, &LayerTelemetry::max_magnitude);
    page += LayerPlot("Spikes: excess kurtosis behind a layer", points, &LayerTelemetry::excess_kurtosis);
    page += LayerPlot("Spikes: values beyond six standard deviations", points, &LayerTelemetry::outliers);
  }
  return page + Facts(receipt);
}

}  // namespace tessera::train
