// Preparing a run over any table of lanes; the public Prepare and RunCache use the one in lanes.def.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/lane_table.h"
#include "planner/prepared.h"
#include "tessera/prepare.h"
#include "tessera/receipt.h"

namespace tessera {

// All that a prepared run may depend on. Of the options: lane, exclude, plan.tile and plan.disable; of
// those for XLA: plugin.
struct PrepareRequest {
  std::span<const LaneRow> table;
  const Contract& contract;
  const Target& target;
  const RunOptions& options;
  std::string_view isa = "auto";
  XlaOptions xla = {};
  Asked asked = Asked::kRun;  // what is prepared for compiling is kept nowhere
};

// A lane was asked for by name.
inline bool IsForced(const RunOptions& options) { return options.lane != "auto"; }

// Names in the request that no lane here has, which is a mistake of the caller's and no lane's refusal.
Status CheckNames(const PrepareRequest& request);

// Builds, whatever is kept already.
Result<std::shared_ptr<const PreparedRun>> PrepareAnew(const PrepareRequest& request);

// As the options say: pinned, from a cache, or anew; with what the receipt says of it.
struct Obtained {
  std::shared_ptr<const PreparedRun> prepared;
  bool is_same_spelling = false;  // the texts of `prepared` are the request's own
  CacheUse use;
};
Result<Obtained> Obtain(const PrepareRequest& request);

// What RunCache::Get does, for a request whose instruction set is settled.
struct RunCacheAccess {
  static Result<CachedRun> Get(RunCache& cache, const PrepareRequest& request);
};

// ---- keys (cache_keys.cc)

// A hash of every value in the request, spelling and all: cheap, and enough to find what was asked for before.
Hash128 SpellingOf(const PrepareRequest& request);
ExactMaskKey ExactMaskKeyOf(const Contract& contract, const MaskSets& sets);
// All but the class key and what depends on selection.
ForwardCacheKey ForwardKeyOf(const PrepareRequest& request, const PreparedContract& prepared);
// What spelling decides beside meaning.
std::string FormDigest(const MaskSets& sets, const MaskFacts& facts);
// Each field of a key as text, in order.
std::vector<std::pair<std::string, std::string>> FieldsOf(const ForwardCacheKey& key);

}  // namespace tessera
