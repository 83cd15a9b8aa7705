// The program: reads the arguments, runs the one subcommand that was named, and turns every mistake into one message.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "program.h"
#include "tessera/cpu_guard.h"

namespace tessera::program {
namespace {

constexpr const char* kAbout =
    "Tessera: block-sparse attention from a contract.\n"
    "A contract says which tokens may attend to which; the planner turns it into an exact plan of tiles; a lane runs\n"
    "the plan forward and backward; a receipt says what ran.";
constexpr const char* kFooter =
    "Try:\n"
    "  tessera demo\n"
    "  tessera explain examples/packed.toml --batch examples/packed_batch.json\n"
    "  tessera run examples/packed.toml --batch examples/packed_batch.json --seed 7 --backward --check\n\n"
    "--json prints one JSON document on standard output; --out FILE replaces FILE whole or not at all.\n"
    "Exit status: 0 good, 1 a check failed, 2 bad input, 3 refused by the lanes.";

int Main(int argc, char** argv) {
  CommandLine line(kAbout, "tessera",
                   fmt::format("tessera {} (contract {}, plan {}, receipt {})", kVersion, kContractVersion,
                               kPlanVersion, kReceiptVersion));
  Command& app = line.root();
  app.Footer(kFooter);
  app.RequireCommand(0, 1);
  Action action;
  AddPlan(app, action);
  AddExplain(app, action);
  AddRoute(app, action);
  AddRun(app, action);
  AddCompile(app, action);
  AddEmit(app, action);
  AddTpuCost(app, action);
  AddVerify(app, action);
  AddBench(app, action);
  AddLanes(app, action);
  AddBridge(app, action);
  AddReceipt(app, action);
  AddLedger(app, action);
  AddExport(app, action);
  AddView(app, action);
  AddRows(app, action);
  AddShard(app, action);
  AddTrain(app, action);
  AddNew(app, action);
  AddError(app, action);
  AddDemo(app, action);
  AddCompletion(app, action);
  AddMan(app, action);
  const Result<bool> goes_on = line.Parse(argc, argv);
  if (!goes_on) return Report(goes_on.error(), false);
  if (!*goes_on) return kGood;
  if (Status ok = DeclarePaths(line.Paths()); !ok) return Report(ok.error(), line.IsGiven("--json"));
  if (!action) {
    PrintError(line.Help());
    return kBadInput;
  }
  return action();
}

}  // namespace
}  // namespace tessera::program

int main(int argc, char** argv) {
  tessera::program::GuardStreams();
  tessera::ReexecWithCpuGuard(argv);
  using tessera::Error;
  using tessera::ErrorCode;
  namespace program = tessera::program;
  int code = program::kBadInput;
  try {
    code = program::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    code = program::Report(Error{ErrorCode::kTooLarge, "out of memory", "", {}}, false);
  } catch (const std::exception& error) {
    code = program::Report(Error{ErrorCode::kBadArgument, error.what(), "", {}}, false);
  }
  // A result that could not be written whole is no result.
  if (auto flushed = program::FlushOutput(); !flushed) return program::Report(flushed.error(), false);
  return code;
}
