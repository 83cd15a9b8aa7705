// A plan to look at: one HTML file that needs nothing but a browser. docs/view.md shows what is in it.
//
// Goals: the map is drawn from the plan's own rows, so that what is seen is what a lane walks; a plan of a million
// tokens opens at once; text from files is never markup. Not a goal: editing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/plan.h"
#include "tessera/stages.h"

#pragma GCC visibility push(default)
namespace tessera {

// What one lane says of the contract.
struct ShownLane {
  std::string lane;
  bool selected = false;
  bool accepted = false;
  std::string why;  // empty where it accepts
};

struct ShownPlan {
  std::string name;                    // as the reader knows it: its file's name
  const PlanView* plan = nullptr;      // both outlive the call
  const Contract* contract = nullptr;  // null for a plan file alone: then cleanups are shown, and no terms
  int64_t workers = 1;                 // of the target it was planned for
  int64_t scalar_bytes = 0;            // the target's scalar memory; 0 = not limited
  std::vector<StageReport> stages = {};
  std::vector<ShownLane> lanes = {};
  std::vector<std::string> notes = {};  // such as a mask that leaks
  // What routing picked, and beside it what each pick scored (RouteResult); null where nothing was routed.
  const Picks* picks = nullptr;
  const std::vector<float>* pick_scores = nullptr;
};

struct ViewSubject {
  std::string title;
  std::vector<ShownPlan> plans = {};       // none, one, or two to compare
  std::vector<std::string> receipts = {};  // JSON documents
};

// TSR-A001 when there is nothing to show, or more than two plans.
Result<std::string> MakeViewHtml(const ViewSubject& subject);

}  // namespace tessera
#pragma GCC visibility pop
