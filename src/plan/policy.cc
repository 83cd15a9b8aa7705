// How tiles that hold several documents are treated, as data. Every statement here is held against MakePlan's
// behaviour by tests/program/policy_test.cc, which fails on a statement it does not know.
#include <string>

#include "io/json_writer.h"
#include "tessera/error.h"
#include "tessera/plan.h"

namespace tessera {

std::string MixedDocumentPolicyJson() {
  JsonWriter policy(2);
  policy.BeginObject();
  policy.Key("policy").Text("mixed_documents");
  policy.Key("version").Int(1);
  policy.Key("scope").Text("masks in which documents must hold for every pair");
  policy.Key("cross_document_pair").Text("rejected");
  policy.Key("negative_id").Text("padding: belongs to no document and sees nothing");
  policy.Key("tile_without_common_document").Text("not_in_worklist");
  policy.Key("mixed_tile").Text("partial_only");
  policy.Key("full_requires")
      .Texts({"every_pair_allowed", "same_document", "query_tile_homogeneous", "key_tile_homogeneous"});
  policy.Key("partial_tile_names_cleanup").Bool(true);
  policy.Key("full_tile_names_cleanup").Bool(false);
  policy.Key("document_boundaries").Text("any_offset");
  policy.Key("tile_size_changes_meaning").Bool(false);
  policy.Key("reappearing_id").BeginObject();
  policy.Key("documents").Text("error " + std::string(CodeText(ErrorCode::kBatchInvalid)));
  policy.Key("documents(equal)").Text("same_document").EndObject();
  policy.Key("sink_document").Text("first tokens of the query's own document only");
  policy.Key("or_branch_without_documents").Text("may allow pairs across documents");
  return policy.EndObject().Take();
}

}  // namespace tessera
