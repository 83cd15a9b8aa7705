// What of a request no batch changes, made once: its keys, the selected lane, every lane's decision on the contract,
// and what planning starts from.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/lane_table.h"
#include "dispatch/options.h"
#include "planner/prepared.h"
#include "tessera/prepare.h"

namespace tessera {

// All that it may depend on. The options are settled: nothing in them is left to an engine any more.
struct PrepareRequest {
  std::span<const LaneRow> table;
  std::span<const MadeLane> lanes;  // of that table
  const Contract& contract;
  const Target& target;
  const AttentionOptions& options;
  bool compile_only = false;
  bool may_copy = false;  // host tensors may be copied to a lane's device: of a one-shot run
};

// Never changes once made, so any number of threads may use it.
struct Prepared {
  ForwardCacheKey key;
  std::string key_digest;
  Hash128 spelling{};  // of the request as it was written: equal ones need no second look
  Contract contract;
  std::string contract_text;  // canonical
  MaskFacts facts;
  Target target;
  std::optional<ClassShape> shape;  // absent where planning would fail, which a run reports when it plans
  Selection selection;              // with every lane's decision on the contract
  std::shared_ptr<const PreparedContract> planning;
  int64_t bytes = 0;  // of memory, about
};

// Names in the request that no lane here has, which is a mistake of the caller's and no lane's refusal.
Status CheckNames(const PrepareRequest& request);

// Makes it, whatever is kept already.
Result<std::shared_ptr<const Prepared>> Prepare(const PrepareRequest& request);

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
