// Records of sparse decoding and of backend choice as plain data: what was asked, what is used, and why they differ.
// Made by functions that know every rule, so that no caller fills one in by hand. A backend is what other systems call
// a lane; these names are theirs. `tessera lanes` and `tessera receipt show` print them. Not a goal: running any of it.
// Meaning never changes with the backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"
#include "tessera/receipt.h"

#pragma GCC visibility push(default)
namespace tessera {

// What an exact-token sparse step did: attended to the indexer's tokens, or to all of them, because there were none.
struct ExactTokenStep {
  std::string indexer;
  bool returned_tokens = false;
  int64_t seq_len = 0;
  std::string requested_backend = {};
  std::string actual_backend = {};
};
struct ExactTokenRecord {
  std::string path;    // "exact_token" or "reroute_to_full"
  std::string reason;  // "indexer_returned_none" when rerouted
  std::string indexer;
  int64_t seq_len = 0;
  // Of exact_token only.
  std::string backend;  // the actual one
  std::string requested_backend;
  std::string actual_backend;
  std::string runtime_mode;  // "exact_token"
  bool operator==(const ExactTokenRecord&) const = default;
};
Result<ExactTokenRecord> MakeExactTokenRecord(const ExactTokenStep& step);
std::string ToJson(const ExactTokenRecord& record);  // only the fields of its path
// What a receipt says of its picks, in these words; nothing for a run without picks, or that did not run.
std::optional<ExactTokenRecord> ExactTokenRecordOf(const Receipt& receipt, const MaskTerms* terms = nullptr);

// A backend is there when its package can be loaded and a device it runs on is present: one of them is not enough.
struct BackendProbe {
  std::string name;
  bool has_package = false;
  bool has_device = false;
  bool IsAvailable() const { return has_package && has_device; }
};
// Which backend to use: the one asked for by name, else the first that is there. One that was asked for and is not
// there is an error, never another backend.
struct BackendChoice {
  std::string backend;
  std::string source;  // "explicit" or "autodetect"
  std::string reason;
  bool operator==(const BackendChoice&) const = default;
};
Result<BackendChoice> ChooseBackend(const std::optional<std::string>& requested,
                                    const std::vector<BackendProbe>& in_order);
std::string ToJson(const BackendChoice& choice);

// What the three phases of a clustered-sparse kernel (score, unite, attend) take by name. A catch-all parameter takes
// everything and declares nothing.
struct PhaseParameters {
  std::vector<std::string> names = {};
  bool has_catch_all = false;
};
struct ClusteredKernel {
  bool is_available = false;
  PhaseParameters phase1 = {};
  PhaseParameters phase2 = {};
  PhaseParameters phase3 = {};
};
// What the kernel may be said to support: a feature counts when phases 1 and 3 both declare it.
struct ClusteredSupport {
  bool local_window = false;
  bool general_doc_ids = false;
  bool valid_prefix = false;
  bool phase1_has_contract = false;
  bool phase2_has_contract = false;
  bool phase3_has_contract = false;
  bool operator==(const ClusteredSupport&) const = default;
};
ClusteredSupport SupportOf(const ClusteredKernel& kernel);
std::string ToJson(const ClusteredSupport& support);

// Which backend decodes a MoBA block-sparse layer.
struct MobaRecord {
  std::string semantic_branch;  // "block_sparse"
  std::string router_type;      // "moba"
  std::string requested_backend;
  std::string requested_backend_source;  // "runtime_contract"
  std::string actual_backend;
  std::string runtime_mode;  // "blockized_sparse_cuda"
  std::optional<std::string> fallback_reason;
  std::string note;
  bool operator==(const MobaRecord&) const = default;
};
// Nothing, "" and "auto" ask for triton; spaces around a name and its case do not matter; only triton and flash exist.
// Flash without its runtime becomes triton, with the reason.
Result<MobaRecord> ResolveMoba(const std::optional<std::string>& requested, const BackendProbe& flash);
std::string ToJson(const MobaRecord& record);

}  // namespace tessera
#pragma GCC visibility pop
