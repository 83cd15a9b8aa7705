// The picture: one group of bars per row of the table. Bars are shares of the roof of the row's dtype, so that f32 and
// bf16 fit one scale; the figure beside a bar is GFLOP/s.
#include <fmt/format.h>

#include <algorithm>

#include "cpu/results.h"

namespace tessera::bench {
namespace {

constexpr double kLabelWidth = 320;
constexpr double kPlotWidth = 560;
constexpr double kRight = 90;
constexpr double kBar = 13;
constexpr double kGap = 12;
constexpr double kTop = 96;
constexpr double kBottom = 44;
// Ours first; chosen to stay apart for colour-blind readers and in grey.
constexpr const char* kColours[] = {"#0b3d91", "#e08214", "#9e9e9e", "#4d9221", "#8073ac"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const std::string& text, const std::string& extra = {}) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, extra, Escaped(text));
}

struct Bar {
  size_t colour = 0;
  double gflops = 0;
};

std::vector<Bar> BarsOf(const TableRow& row) {
  std::vector<Bar> bars{{0, row.gflops}};
  for (size_t i = 0; i < row.peers.size(); ++i) {
    if (row.peers[i].skipped.empty()) bars.push_back({i + 1, row.peers[i].gflops});
  }
  return bars;
}

}  // namespace

std::string ToSvg(const Results& results) {
  const double threads = static_cast<double>(results.settings.threads);
  const auto roof_of = [&](const TableRow& row) {
    return (row.bf16_roof ? results.bf16_roof.gflops : results.f32_roof.gflops) * threads;
  };
  // Without a roof the fastest bar takes the whole width.
  double most = 1;
  double height = kTop;
  for (const TableRow& row : results.table) {
    for (const Bar& bar : BarsOf(row)) {
      if (roof_of(row) > 0) most = std::max(most, bar.gflops / roof_of(row));
      height += kBar;
    }
    height += kGap;
  }
  const double plot_end = height;
  height += kBottom;
  const double width = kLabelWidth + kPlotWidth + kRight;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  svg += Text(12, 24, "CPU attention beside what people use today", "font-size=\"16\" font-weight=\"bold\"");
  const auto roof_text = [](const Roof& roof) {
    return roof.gflops > 0 ? fmt::format("{:.0f} GFLOP/s ({})", roof.gflops, roof.instructions) : roof.instructions;
  };
  svg += Text(
      12, 42,
      fmt::format("{}, {} thread{}, {}{}. Roof of one core: f32 {}; bf16 {}", results.machine, results.settings.threads,
                  results.settings.threads == 1 ? "" : "s", results.date,
                  results.settings.tokens > 0 ? fmt::format(", every case at {} tokens", results.settings.tokens) : "",
                  roof_text(results.f32_roof), roof_text(results.bf16_roof)),
      "fill=\"#444\"");
  double legend = 12;
  const auto add_legend = [&](size_t colour, const std::string& name) {
    svg +=
        fmt::format("<rect x=\"{:.1f}\" y=\"56\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", legend, kColours[colour]);
    svg += Text(legend + 16, 66, name);
    legend += 34 + 6.2 * static_cast<double>(name.size());
  };
  const std::string lane = results.table.empty() ? "" : results.table[0].lane;
  add_legend(0, lane == "cpu" ? "Tessera" : "Tessera, lane " + lane);
  for (size_t i = 0; i < results.peers.size(); ++i) {
    const PeerInfo& peer = results.peers[i];
    if (peer.missing.empty()) add_legend(i + 1, peer.title + " " + peer.version);
  }
  const auto x_of = [&](double share) { return kLabelWidth + kPlotWidth * share / most; };
  for (int tenth = 0; tenth <= static_cast<int>(most * 10 + 1e-9); tenth += 2) {
    const bool is_roof = tenth == 10;
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"{4}/>\n",
                       x_of(tenth / 10.0), kTop - 6, plot_end, is_roof ? "#b2182b" : "#ddd",
                       is_roof ? " stroke-width=\"1.5\"" : "");
    svg += Text(x_of(tenth / 10.0), plot_end + 16, is_roof ? "roof" : fmt::format("{}%", tenth * 10),
                is_roof ? "text-anchor=\"middle\" fill=\"#b2182b\"" : "text-anchor=\"middle\" fill=\"#444\"");
  }
  svg += Text(x_of(most / 2), plot_end + 34,
              "share of the roof of the case's dtype; figures are GFLOP/s over the allowed pairs",
              "text-anchor=\"middle\" fill=\"#444\"");
  double y = kTop;
  for (const TableRow& row : results.table) {
    const std::vector<Bar> bars = BarsOf(row);
    const double roof =
        roof_of(row) > 0
            ? roof_of(row)
            : std::max_element(bars.begin(), bars.end(), [](auto& a, auto& b) { return a.gflops < b.gflops; })->gflops;
    const double middle = y + kBar * static_cast<double>(bars.size()) / 2;
    svg += Text(kLabelWidth - 10, middle + 4,
                fmt::format("{}, {}", row.shape.name, row.mode == Mode::kForward ? "forward" : "forward+backward"),
                "text-anchor=\"end\"");
    for (const Bar& bar : bars) {
      svg +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", kLabelWidth,
                      y + 1, std::max(1.0, kPlotWidth * bar.gflops / roof / most), kBar - 2, kColours[bar.colour]);
      svg += Text(x_of(bar.gflops / roof) + 5, y + kBar - 3, fmt::format("{:.1f}", bar.gflops),
                  bar.colour == 0 ? "font-weight=\"bold\"" : "fill=\"#444\"");
      y += kBar;
    }
    y += kGap;
  }
  return svg + "</svg>\n";
}

}  // namespace tessera::bench
