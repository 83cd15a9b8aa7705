// The contract: which tokens may attend to which, and how scores are formed. A plain value type.
//
// A contract is static. What changes from batch to batch (document ids, valid lengths, picks) is a Batch and
// never enters a key. Goals: every violation reported at once, text that round-trips exactly, keys that depend
// on meaning and not on spelling. Not a goal: a general score-modification language.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/bitmap.h"
#include "tessera/dtype.h"
#include "tessera/error.h"

#pragma GCC visibility push(default)
namespace tessera {

enum class TermKind : uint8_t {
  kFull,            // every pair
  kCausal,          // j <= p, with p = i + offset
  kWindow,          // p - first <= j <= p + second; -1 = unlimited; 0 = self only
  kChunk,           // p and j in the same chunk of `first`
  kPrefix,          // p < first and j < first
  kSink,            // j < first
  kSinkDocument,    // the first `first` tokens of the query's own document
  kDocuments,       // run-time ids equal; an id that reappears later in a row is an error
  kDocumentsEqual,  // run-time ids equal; ids may reappear
  kValid,           // both tokens inside the run-time valid prefix
  kBlocks,          // run-time picks
  kBitmap,          // static cells from a file
  kRegistered,      // a term of the user's own, registered from C++
};

class MaskTerms;       // tessera/mask_term.h
class RegisteredTerm;  // the same

struct MaskTerm {
  TermKind kind = TermKind::kFull;
  int64_t first = 0;
  int64_t second = 0;
  std::string path;                                  // bitmap only: as written in the contract
  std::shared_ptr<const Bitmap> bitmap;              // bitmap only: loaded when the contract is parsed
  std::vector<int64_t> parameters;                   // registered only: as written
  std::shared_ptr<const RegisteredTerm> registered;  // registered only: what MaskTerms::Find gives
  bool operator==(const MaskTerm& other) const;
};

// A mask expression: a term, or the `and` / `or` of two or more expressions. There is no `not`, so every
// expression is monotone in its terms; the planner and the keys rely on that.
struct MaskExpr {
  enum class Op : uint8_t { kTerm, kAnd, kOr };
  Op op = Op::kTerm;
  MaskTerm term;
  std::vector<MaskExpr> children;
  bool operator==(const MaskExpr& other) const = default;
};

struct Shape {
  int64_t batch = 1;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t num_q_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t dim_qk = 0;
  int64_t dim_v = 0;
  DType dtype = DType::kF32;
  bool operator==(const Shape&) const = default;
};

struct Mask {
  std::vector<MaskExpr> heads;  // one for all heads, or one per query head
  int64_t offset = 0;           // p = i + offset; the default is kv_len - q_len
  const MaskExpr& ForHead(int64_t head) const { return heads[heads.size() == 1 ? 0 : static_cast<size_t>(head)]; }
  bool operator==(const Mask&) const = default;
};

struct Score {
  double scale = 0.0;        // the parser's default is 1/sqrt(dim_qk)
  double softcap = 0.0;      // 0 = off
  bool sink_logits = false;  // whether a run brings one learnable logit per query head
  bool operator==(const Score&) const = default;
};

// The contract's tile is logical granularity only: meaning never depends on it.
struct TileSize {
  int64_t q = 256;
  int64_t kv = 256;
  bool operator==(const TileSize&) const = default;
};

// How many entries a compiled class must hold.
struct Limit {
  enum class Kind : uint8_t { kExact, kPow2, kNumber };
  Kind kind = Kind::kExact;
  int64_t number = 0;
  bool operator==(const Limit&) const = default;
};

struct Capacity {
  Limit width;             // worklist slots per query-tile row
  Limit width_transposed;  // worklist slots per key-tile column
  Limit cleanups;          // cleanup table entries
  bool operator==(const Capacity&) const = default;
};

// Parsed, validated and keyed; the routing stages execute it.
struct Routing {
  int64_t query_tile = 256;
  int64_t kv_tile = 1024;  // keys whose means are scored in one step; picks do not depend on it
  int64_t selected_block = 256;
  int64_t block_stride = 64;
  int64_t compression_block = 128;
  int64_t top_n = 8;
  int64_t first_blocks = 0;   // leading blocks every query keeps
  bool hierarchical = false;  // expand: meta-blocks first
  int64_t meta_ratio = 8;
  int64_t meta_keep = 16;
  int64_t union_capacity = 0;  // 0 = as many blocks as there are
  bool operator==(const Routing&) const = default;
};

struct Contract {
  int64_t version = 1;
  Shape shape;
  Mask mask;
  Score score;
  TileSize tiles;
  std::string tiles_reason;  // required when a tile is smaller than 256; never part of a key
  Capacity capacity;
  std::optional<Routing> routing;
  bool operator==(const Contract&) const = default;
};

// Every broken rule, with its field and what was expected; empty when the contract is good.
std::vector<Violation> Validate(const Contract& contract);

// Reads TOML or JSON (told apart by the first character), resolves defaults, loads bitmaps relative to
// `base_dir`, and validates: a Contract that comes out of here is good. Masks may name the built-in terms, and those in
// `terms` where it is given.
Result<Contract> ParseContract(std::string_view text, const std::string& base_dir = ".",
                               const MaskTerms* terms = nullptr);
Result<Contract> ReadContract(const std::string& path, const MaskTerms* terms = nullptr);
Result<MaskExpr> ParseMaskExpr(std::string_view text, const std::string& base_dir = ".",
                               const MaskTerms* terms = nullptr);

// Canonical text: every field, defaults resolved. Parsing it gives an equal contract.
std::string ToToml(const Contract& contract);
std::string ToJson(const Contract& contract);
std::string ToText(const MaskExpr& expr);

// What a mask needs at run time and what it amounts to, decided by meaning and not by spelling:
// `full or documents` needs no documents, `causal and window(8191, 0)` at 8192 tokens is plain causal.
struct MaskFacts {
  bool needs_documents = false;
  bool documents_may_reappear = false;
  bool needs_valid = false;
  bool needs_blocks = false;
  // Named in the mask, whether or not it matters at these lengths: a batch may bring it, and is checked if it does.
  bool names_documents = false;
  bool names_valid = false;
  bool names_blocks = false;
  bool is_full = false;     // every head sees every key
  bool is_causal = false;   // every head sees j <= p and nothing else restricts it
  bool has_window = false;  // a window term that really restricts
  bool has_bitmap = false;
};
Result<MaskFacts> DescribeMask(const Contract& contract);

// 32 hex digits. Equal meaning gives equal keys; see design note 0001.
Result<std::string> ContractKey(const Contract& contract);

}  // namespace tessera
#pragma GCC visibility pop
