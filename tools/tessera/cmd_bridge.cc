// `tessera bridge`: the health receipt of the bridge to JAX.
#include <fmt/format.h>

#include <memory>

#include "bridge_health.h"
#include "json_text.h"
#include "program.h"

namespace tessera::program {
namespace {

struct Options {
  bool json = false;
};

constexpr const char* kFooter =
    "Six cases, each on the bridge itself: any NaN makes it unhealthy. TESSERA_PYTHON names the interpreter, else\n"
    "VIRTUAL_ENV, else python3 of PATH.\n"
    "Exit status: 0 healthy, 1 not, 3 there is no bridge here, with the reason.\n"
    "Examples:\n"
    "  TESSERA_PYTHON=~/.cache/tessera/peers/bin/python3 tessera bridge\n"
    "  tessera bridge --json";

int RunBridge(const Options& options) {
  const Result<BridgeHealth> health = CheckBridge(TheEngine());
  if (!health) return Report(health.error(), options.json);
  if (options.json) {
    Print(ToJson(*health) + "\n");
    return health->IsHealthy() ? kGood : kCheckFailed;
  }
  const CrossingUse& use = health->use;
  Print(fmt::format("call_jax: {} ({}{}{})\n", use.runtime, use.interpreter, use.library.empty() ? "" : " from ",
                    use.library));
  for (const BridgeCase& one : health->cases) {
    const std::string nans = one.nans == 0 ? "" : fmt::format(", {} NaN", one.nans);
    const size_t end = one.note.find('\n');  // what follows, of a failed check, is a line for each output
    Print(fmt::format("  {:<24} {}{}: {}\n", one.name, one.pass ? "pass" : "FAIL", nans, one.note.substr(0, end)));
    if (end != std::string::npos) Print(Indented(one.note.substr(end + 1), "    "));
  }
  Print(fmt::format("{} calls: {} bytes in, of which {} were copied; {} bytes out, each copied once\n",
                    Grouped(use.calls), Grouped(use.bytes_in), Grouped(use.copied_in), Grouped(use.bytes_out)));
  Print(health->IsHealthy() ? "healthy\n" : "unhealthy\n");
  return health->IsHealthy() ? kGood : kCheckFailed;
}

}  // namespace

void AddBridge(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("bridge", "Show whether the bridge to JAX works here, in six cases");
  sub->Footer(kFooter);
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->OnParsed([&action, options] { action = [options] { return RunBridge(*options); }; });
}

}  // namespace tessera::program
