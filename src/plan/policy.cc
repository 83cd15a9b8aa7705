// How tiles that hold several documents are treated, as data. Every statement here is held against MakePlan's
// behaviour by tests/program/policy_test.cc, which fails on a statement it does not know.
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera {

std::string MixedDocumentPolicyJson() {
  const std::string batch_error(CodeText(ErrorCode::kBatchInvalid));
  const nlohmann::ordered_json policy = {
      {"policy", "mixed_documents"},
      {"version", 1},
      {"scope", "masks in which documents must hold for every pair"},
      {"cross_document_pair", "rejected"},
      {"negative_id", "padding: belongs to no document and sees nothing"},
      {"tile_without_common_document", "not_in_worklist"},
      {"mixed_tile", "partial_only"},
      {"full_requires", {"every_pair_allowed", "same_document", "query_tile_homogeneous", "key_tile_homogeneous"}},
      {"partial_tile_names_cleanup", true},
      {"full_tile_names_cleanup", false},
      {"document_boundaries", "any_offset"},
      {"tile_size_changes_meaning", false},
      {"reappearing_id", {{"documents", "error " + batch_error}, {"documents(equal)", "same_document"}}},
      {"sink_document", "first tokens of the query's own document only"},
      {"or_branch_without_documents", "may allow pairs across documents"},
  };
  return policy.dump(2);
}

}  // namespace tessera
