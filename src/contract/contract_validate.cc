// The rules a contract must keep. Each broken one is reported with its field; none is repaired in silence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/spelling.h"
#include "contract/bitmap_shape.h"
#include "contract/limits.h"
#include "contract/mask_registry.h"
#include "contract/mask_terms.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

// With larger or smaller ones, products of them with ordinary queries and keys leave the range of f32.
bool IsScoreFactor(double value) {
  constexpr double kMost = kMaxScoreFactor;
  return value >= 1.0 / kMost && value <= kMost;
}

class Validator {
 public:
  explicit Validator(const Contract& contract) : contract_(contract) {}

  std::vector<Violation> Check() {
    if (contract_.version != 1) Broken("version", fmt::format("expected 1, found {}", contract_.version));
    CheckShape();
    CheckMask();
    CheckScore();
    CheckTiles();
    CheckCapacity("capacity.width", contract_.capacity.width);
    CheckCapacity("capacity.width_transposed", contract_.capacity.width_transposed);
    CheckCapacity("capacity.cleanups", contract_.capacity.cleanups);
    if (contract_.routing) CheckRouting(*contract_.routing);
    return std::move(violations_);
  }

 private:
  void Broken(std::string field, std::string expected) {
    violations_.push_back({std::move(field), std::move(expected)});
  }

  bool InRange(std::string field, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return true;
    Broken(std::move(field), fmt::format("expected {} to {}, found {}", min, max, value));
    return false;
  }

  void CheckShape() {
    const Shape& shape = contract_.shape;
    const bool good_batch = InRange("shape.batch", shape.batch, 1, kMaxBatch);
    bool good = InRange("shape.q_len", shape.q_len, 1, kMaxLength);
    good &= InRange("shape.kv_len", shape.kv_len, 1, kMaxLength);
    const bool good_q_heads = InRange("shape.num_q_heads", shape.num_q_heads, 1, kMaxHeads);
    can_ask_terms_ = good && good_q_heads;
    const bool good_kv_heads = InRange("shape.num_kv_heads", shape.num_kv_heads, 1, kMaxHeads);
    good &= InRange("shape.dim_qk", shape.dim_qk, 1, kMaxDim);
    good &= InRange("shape.dim_v", shape.dim_v, 1, kMaxDim);
    if (shape.dtype != DType::kF32 && shape.dtype != DType::kBf16 && shape.dtype != DType::kF16) {
      Broken("shape.dtype", "expected f32, bf16 or f16");
    }
    if (!good_q_heads || !good_kv_heads) return;
    if (shape.num_q_heads % shape.num_kv_heads != 0) {
      Broken("shape.num_kv_heads",
             fmt::format("expected a divisor of num_q_heads ({}), found {}", shape.num_q_heads, shape.num_kv_heads));
    }
    if (!good || !good_batch) return;
    const int64_t len = std::max(shape.q_len, shape.kv_len);
    const int64_t heads = std::max(shape.num_q_heads, shape.num_kv_heads);
    const int64_t dim = std::max(shape.dim_qk, shape.dim_v);
    const int64_t sizes[] = {shape.batch, heads, len, dim};
    const std::optional<int64_t> elements = CheckedProduct(sizes);
    if (!elements || *elements > kMaxTensorElements) {
      Broken("shape", fmt::format("expected at most {} elements in a tensor (batch x heads x length x dim)",
                                  kMaxTensorElements));
    }
  }

  void CheckMask() {
    const Mask& mask = contract_.mask;
    can_ask_terms_ &= InRange("mask.offset", mask.offset, -kMaxLength, kMaxLength);
    const auto num_masks = static_cast<int64_t>(mask.heads.size());
    if (num_masks != 1 && num_masks != contract_.shape.num_q_heads) {
      Broken("mask.heads", fmt::format("expected one expression, or one per query head ({}), found {}",
                                       contract_.shape.num_q_heads, num_masks));
      can_ask_terms_ = false;
    }
    int64_t terms = 0;
    for (size_t head = 0; head < mask.heads.size(); ++head) {
      field_ = mask.heads.size() == 1 ? "mask.expr" : fmt::format("mask.heads[{}]", head);
      head_ = static_cast<int64_t>(head);
      terms_ = 0;
      too_deep_ = false;
      CheckExpr(mask.heads[head], {});
      terms += terms_;
      if (too_deep_) {
        Broken(field_, fmt::format("expected at most {} nested parentheses", kMaxMaskNesting));
      } else if (terms_ > kMaxMaskTerms) {
        Broken(field_, fmt::format("expected at most {} terms, found {}", kMaxMaskTerms, terms_));
      } else if (ToText(mask.heads[head]).size() > kMaxMaskTextBytes) {
        Broken(field_, fmt::format("expected at most {} bytes of canonical text", kMaxMaskTextBytes));
      }
    }
    if (terms > kMaxMaskTermsOverHeads) {
      Broken("mask.heads",
             fmt::format("expected at most {} terms over all heads, found {}", kMaxMaskTermsOverHeads, terms));
    }
    if (run_time_terms_.size() > kMaxRunTimeTerms) {
      Broken("mask", fmt::format("expected at most {} distinct run-time terms (documents, valid, blocks, each "
                                 "sink(count, document)), found {}",
                                 kMaxRunTimeTerms, run_time_terms_.size()));
    }
  }

  // Where in the tree an expression stands.
  struct Place {
    MaskExpr::Op inside = MaskExpr::Op::kOr;
    int levels = 0;
    int parentheses = 0;
  };

  void CheckExpr(const MaskExpr& expr, Place place) {
    if (expr.op == MaskExpr::Op::kTerm) {
      ++terms_;
      if (!expr.children.empty()) Broken(field_, "expected a term to have no sub-expressions");
      CheckTerm(expr.term);
      return;
    }
    if (expr.op != MaskExpr::Op::kAnd && expr.op != MaskExpr::Op::kOr) {
      Broken(field_, "expected a term, `and` or `or`");
      return;
    }
    if (expr.children.size() < 2) {
      Broken(field_, fmt::format("expected at least 2 sub-expressions of `{}`, found {}",
                                 expr.op == MaskExpr::Op::kAnd ? "and" : "or", expr.children.size()));
    }
    if (expr.op == MaskExpr::Op::kOr && place.inside == MaskExpr::Op::kAnd) ++place.parentheses;
    ++place.levels;
    // Each pair of parentheses can hold an `or` of `and`s; a tree not made by the parser may be deeper than its text.
    if (place.parentheses > kMaxMaskNesting || place.levels > 2 * (kMaxMaskNesting + 1)) {
      too_deep_ = true;
      return;
    }
    place.inside = expr.op;
    for (const MaskExpr& child : expr.children) CheckExpr(child, place);
  }

  void CheckRegistered(const MaskTerm& term) {
    if (term.first != 0 || term.second != 0 || !term.path.empty() || term.bitmap != nullptr) {
      Broken(field_, "expected a registered term to have parameters only");
    }
    if (term.registered == nullptr) {
      Broken(field_, "expected a registered term to be one that MaskTerms::Find gives");
      return;
    }
    if (std::string problem = ParametersProblem(*term.registered, term.parameters); !problem.empty()) {
      Broken(field_, std::move(problem));
      return;
    }
    if (!can_ask_terms_) return;
    const bool every_head = term.registered->per_head && contract_.mask.heads.size() == 1;
    for (int64_t head = head_; head < (every_head ? contract_.shape.num_q_heads : head_ + 1); ++head) {
      const Result<std::shared_ptr<const RowSet>> set = RegisteredSet(contract_, term, head);
      if (set) continue;
      Broken(field_, every_head ? fmt::format("{} (head {})", set.error().message, head) : set.error().message);
      return;
    }
  }

  void CheckTerm(const MaskTerm& term) {
    if (term.kind == TermKind::kRegistered) {
      CheckRegistered(term);
      return;
    }
    if (term.registered != nullptr || !term.parameters.empty()) {
      Broken(field_, "expected parameters on registered terms only");
    }
    const TermSpec* spec = FindTermSpec(term.kind);
    if (spec == nullptr) {
      Broken(field_, "expected a known kind of term");
      return;
    }
    const int64_t arguments[] = {term.first, term.second};
    for (int i = 0; i < 2; ++i) {
      if (i < spec->num_arguments) {
        std::string problem = ArgumentProblem(*spec, i, arguments[i]);
        if (!problem.empty()) Broken(field_, std::move(problem));
      } else if (arguments[i] != 0) {
        Broken(field_, fmt::format("expected no number beyond those of {}, found {}", spec->usage, arguments[i]));
      }
    }
    if (term.kind == TermKind::kChunk && term.first > 0 && contract_.shape.q_len / term.first > kMaxChunks) {
      Broken(field_, fmt::format("expected chunks large enough that a row has at most {}; chunk({}) makes {}",
                                 kMaxChunks, term.first, contract_.shape.q_len / term.first));
    }
    if (term.kind == TermKind::kBitmap) {
      CheckBitmap(term);
    } else if (!term.path.empty() || term.bitmap != nullptr) {
      Broken(field_, fmt::format("expected no file on {}", spec->usage));
    }
    switch (term.kind) {
      case TermKind::kDocuments:
      case TermKind::kDocumentsEqual:
        run_time_terms_.insert({TermKind::kDocuments, 0});
        break;
      case TermKind::kValid:
      case TermKind::kBlocks:
      case TermKind::kSinkDocument:
        run_time_terms_.insert({term.kind, term.first});
        break;
      default:
        break;
    }
    has_blocks_ |= term.kind == TermKind::kBlocks;
  }

  void CheckBitmap(const MaskTerm& term) {
    const bool has_control = std::any_of(term.path.begin(), term.path.end(),
                                         [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
    if (term.path.empty() || has_control || !IsUtf8(term.path)) {
      Broken(field_, "expected a bitmap's path to be UTF-8 text without control characters, and not empty");
    }
    if (term.bitmap == nullptr) {
      Broken(field_, fmt::format("expected the bitmap {} to be loaded", Excerpt(term.path)));
      return;
    }
    const Bitmap& bitmap = *term.bitmap;
    for (std::string& problem : BitmapShapeProblems(contract_.shape, term)) Broken(field_, std::move(problem));
    if (bitmap.digest.size() != 32) {
      Broken(field_, fmt::format("expected the bitmap {} to carry its digest of 32 hex digits", Excerpt(term.path)));
    }
    const int64_t sizes[] = {bitmap.heads, bitmap.q_len, bitmap.kv_len};
    if (CheckedProduct(sizes) != static_cast<int64_t>(bitmap.cells.size())) {
      Broken(field_, fmt::format("expected the bitmap {} to hold heads x q_len x kv_len cells, found {}",
                                 Excerpt(term.path), bitmap.cells.size()));
    }
  }

  void CheckScore() {
    const Score& score = contract_.score;
    if (!IsScoreFactor(score.scale)) {
      Broken("score.scale", fmt::format("expected 1e-15 to 1e15, found {}", score.scale));
    }
    if (score.softcap != 0 && !IsScoreFactor(score.softcap)) {
      Broken("score.softcap", fmt::format("expected 0 (off), or 1e-15 to 1e15, found {}", score.softcap));
    }
  }

  void CheckTiles() {
    const TileSize& tiles = contract_.tiles;
    bool good = InRange("tiles.q", tiles.q, 1, kMaxTile);
    good &= InRange("tiles.kv", tiles.kv, 1, kMaxTile);
    if (!IsUtf8(contract_.tiles_reason)) Broken("tiles.reason", "expected UTF-8 text");
    const bool blank = contract_.tiles_reason.find_first_not_of(" \t\r\n") == std::string::npos;
    if (good && blank && (tiles.q < kFreeTile || tiles.kv < kFreeTile)) {
      Broken("tiles.reason", fmt::format("expected a reason for a tile smaller than {} ({} x {}), found none",
                                         kFreeTile, tiles.q, tiles.kv));
    }
  }

  void CheckCapacity(std::string field, const Limit& limit) {
    switch (limit.kind) {
      case Limit::Kind::kNumber:
        InRange(std::move(field), limit.number, 1, kMaxLength);
        return;
      case Limit::Kind::kExact:
      case Limit::Kind::kPow2:
        if (limit.number != 0) Broken(std::move(field), "expected no number beside \"exact\" or \"pow2\"");
        return;
    }
    Broken(std::move(field), "expected \"exact\", \"pow2\" or a positive integer");
  }

  void CheckRouting(const Routing& routing) {
    if (!has_blocks_) Broken("routing", "expected a `blocks` term in the mask: routing makes the picks it reads");
    InRange("routing.query_tile", routing.query_tile, 1, kMaxTile);
    const bool good_tile = InRange("routing.kv_tile", routing.kv_tile, 1, kMaxLength);
    const bool good_block = InRange("routing.selected_block", routing.selected_block, 1, kMaxLength);
    const bool good_stride = InRange("routing.block_stride", routing.block_stride, 1, kMaxLength);
    const bool good_means = InRange("routing.compression_block", routing.compression_block, 1, kMaxLength);
    if (good_block && good_tile) Multiple("kv_tile", routing.kv_tile, "selected_block", routing.selected_block);
    if (good_block && good_means) {
      Multiple("selected_block", routing.selected_block, "compression_block", routing.compression_block);
    }
    if (good_block && good_stride) {
      Multiple("selected_block", routing.selected_block, "block_stride", routing.block_stride);
    }
    if (good_stride && good_means && routing.block_stride > routing.compression_block) {
      Broken("routing.block_stride",
             fmt::format("expected at most compression_block ({}), so that every key is in a mean, found {}",
                         routing.compression_block, routing.block_stride));
    }
    const bool good_ratio = InRange("routing.meta_ratio", routing.meta_ratio, 1, kMaxLength);
    const bool good_keep = InRange("routing.meta_keep", routing.meta_keep, 1, kMaxLength);

    const int64_t kv_len = contract_.shape.kv_len;
    if (!good_block || kv_len < 1 || kv_len > kMaxLength) return;
    const int64_t blocks = (kv_len + routing.selected_block - 1) / routing.selected_block;
    if (!InRange("routing.top_n", routing.top_n, 1, blocks)) return;
    InRange("routing.first_blocks", routing.first_blocks, 0, routing.top_n);
    if (routing.union_capacity != 0) InRange("routing.union_capacity", routing.union_capacity, routing.top_n, blocks);
    if (routing.hierarchical && good_ratio && good_keep && routing.meta_keep * routing.meta_ratio < routing.top_n) {
      Broken("routing.meta_keep", fmt::format("expected meta_keep x meta_ratio of at least top_n ({}), found {} x {}",
                                              routing.top_n, routing.meta_keep, routing.meta_ratio));
    }
  }

  void Multiple(std::string_view name, int64_t value, std::string_view of_name, int64_t of) {
    if (value % of == 0) return;
    Broken(fmt::format("routing.{}", name),
           fmt::format("expected a multiple of {} ({}), found {}", of_name, of, value));
  }

  const Contract& contract_;
  std::vector<Violation> violations_;
  std::string field_;           // of the mask being checked
  int64_t head_ = 0;            // of the mask being checked; 0 where one mask is for all
  bool can_ask_terms_ = false;  // lengths, offset and heads are such that a registered term may be asked
  int terms_ = 0;
  bool too_deep_ = false;
  bool has_blocks_ = false;
  std::set<std::pair<TermKind, int64_t>> run_time_terms_;
};

}  // namespace

std::vector<std::string> BitmapShapeProblems(const Shape& shape, const MaskTerm& term) {
  std::vector<std::string> problems;
  const Bitmap& bitmap = *term.bitmap;
  if (bitmap.q_len != shape.q_len || bitmap.kv_len != shape.kv_len) {
    problems.push_back(fmt::format("expected the bitmap {} to be q_len x kv_len ({} x {}), found {} x {}",
                                   Excerpt(term.path), shape.q_len, shape.kv_len, bitmap.q_len, bitmap.kv_len));
  }
  if (bitmap.heads != 1 && bitmap.heads != shape.num_q_heads) {
    problems.push_back(fmt::format("expected the bitmap {} to have 1 or num_q_heads ({}) heads, found {}",
                                   Excerpt(term.path), shape.num_q_heads, bitmap.heads));
  }
  return problems;
}

std::vector<Violation> Validate(const Contract& contract) { return Validator(contract).Check(); }

}  // namespace tessera
