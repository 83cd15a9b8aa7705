// See tessera/chip_figures.h.
#include "tessera/chip_figures.h"

namespace tessera {
namespace {

struct Row {
  std::string_view target;
  ChipFigures figures;
};
// Of docs.cloud.google.com/tpu/docs/v6e and /v5e, as of November 2026: 3,200 and 1,600 Gbit/s of interconnect for each
// chip, pods of 256, and 25.6 and 6.4 Tbit/s of network for a pod.
constexpr Row kRows[] = {{"v6e", {918e12, 400e9, 256, 12.5e9}}, {"v5e", {197e12, 200e9, 256, 3.125e9}}};

}  // namespace

std::optional<ChipFigures> ChipFiguresOf(std::string_view target) {
  for (const Row& row : kRows) {
    if (row.target == target) return row.figures;
  }
  return {};
}

}  // namespace tessera
