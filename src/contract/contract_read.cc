// Contract text to a Contract: fields and defaults, masks with their bitmaps, then the rules of Validate. Everything
// wrong with the fields is reported at once.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/spelling.h"
#include "base/try.h"
#include "contract/bitmap_shape.h"
#include "contract/contract_section.h"
#include "contract/default_scale.h"
#include "contract/limits.h"
#include "contract/mask_parse.h"
#include "io/document.h"
#include "tessera/contract.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

class ContractReader {
 public:
  ContractReader(const std::string& base_dir, const MaskTerms* terms) : loader_(base_dir), terms_(terms) {}

  Result<Contract> Read(const DocumentValue& document) {
    ContractSection root("", &document, &problems_);
    if (root.RequiredInteger("version", &contract_.version) && contract_.version != 1) {
      root.Problem("version", fmt::format("expected 1, found {}", contract_.version));
    }
    const DocumentValue* shape = root.Table("shape");
    if (document.Find("shape") == nullptr) root.Missing("shape", "a table with at least q_len and dim_qk");
    if (shape != nullptr) ReadShape(shape);
    const DocumentValue* mask = root.Table("mask");
    if (document.Find("mask") == nullptr) root.Missing("mask", "a table with expr or heads");
    if (mask != nullptr) ReadMask(mask);
    ReadScore(root.Table("score"));
    ReadTiles(root.Table("tiles"));
    ReadCapacity(root.Table("capacity"));
    if (const DocumentValue* routing = root.Table("routing")) ReadRouting(routing);
    root.Finish();
    return Finish();
  }

 private:
  void ReadShape(const DocumentValue* table) {
    ContractSection section("shape", table, &problems_);
    Shape& shape = contract_.shape;
    section.Integer("batch", &shape.batch);
    section.RequiredInteger("q_len", &shape.q_len);
    shape.kv_len = shape.q_len;
    section.Integer("kv_len", &shape.kv_len);
    head_count_known_ = section.Integer("num_q_heads", &shape.num_q_heads) || table->Find("num_q_heads") == nullptr;
    shape.num_kv_heads = shape.num_q_heads;
    section.Integer("num_kv_heads", &shape.num_kv_heads);
    section.RequiredInteger("dim_qk", &shape.dim_qk);
    shape.dim_v = shape.dim_qk;
    section.Integer("dim_v", &shape.dim_v);
    std::string dtype;
    if (section.Text("dtype", &dtype) && !ReadDType(dtype)) {
      section.Problem("dtype", fmt::format("expected \"f32\", \"bf16\" or \"f16\", found {}", Excerpt(dtype)));
    }
    section.Finish();
  }

  bool ReadDType(const std::string& name) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      if (name != ToText(dtype)) continue;
      contract_.shape.dtype = dtype;
      return true;
    }
    return false;
  }

  void ReadMask(const DocumentValue* table) {
    ContractSection section("mask", table, &problems_);
    const DocumentValue* expr = section.Any("expr");
    const DocumentValue* heads = section.Any("heads");
    // Lengths may be absurd here; Validate says so, and the difference must not overflow before that.
    const auto is_length = [](int64_t len) { return len >= 1 && len <= kMaxLength; };
    if (is_length(contract_.shape.q_len) && is_length(contract_.shape.kv_len)) {
      contract_.mask.offset = contract_.shape.kv_len - contract_.shape.q_len;
    }
    section.Integer("offset", &contract_.mask.offset);
    section.Finish();
    if ((expr == nullptr) == (heads == nullptr)) {
      problems_.push_back(
          {"mask", expr == nullptr ? "expected expr or heads, found neither" : "expected expr or heads, found both"});
    } else if (expr != nullptr) {
      contract_.mask.heads.push_back(ReadExpr("mask.expr", *expr));
    } else if (heads->kind != Kind::kArray || heads->items.empty()) {
      section.WrongType("heads", "an array: one expression per query head, or tables with range and expr", *heads);
    } else if (heads->items.front().kind == Kind::kTable) {
      ReadRanges(*heads);
    } else {
      ReadHeads(*heads);
    }
  }

  // A mask that does not parse is noted, and `blocks` stands in for it so that the other rules can still be checked:
  // the one term that no rule of Validate can miss or refuse.
  MaskExpr ReadExpr(const std::string& path, const DocumentValue& value) {
    if (value.kind != Kind::kString) {
      problems_.push_back({path, fmt::format("expected a string, found {}", value.Describe())});
      return StandIn();
    }
    Result<MaskExpr> expr = ParseMaskExpr(value.text, loader_, terms_);
    if (expr) return std::move(*expr);
    const Error& error = expr.error();
    if (!mask_error_) mask_error_ = error.code;
    mask_problems_.push_back(
        {path, error.where.empty() ? error.message : fmt::format("{}: {}", error.where, error.message)});
    return StandIn();
  }

  static MaskExpr StandIn() {
    MaskExpr expr;
    expr.term.kind = TermKind::kBlocks;
    return expr;
  }

  bool CheckHeadCount(int64_t given) {
    if (given == contract_.shape.num_q_heads) return true;
    if (!head_count_known_) return false;
    problems_.push_back({"mask.heads", fmt::format("expected one expression per query head ({}), found {}",
                                                   contract_.shape.num_q_heads, given)});
    return false;
  }

  void ReadHeads(const DocumentValue& heads) {
    if (!CheckHeadCount(static_cast<int64_t>(heads.items.size()))) return;
    int64_t terms = 0;
    for (size_t head = 0; head < heads.items.size(); ++head) {
      contract_.mask.heads.push_back(ReadExpr(fmt::format("mask.heads[{}]", head), heads.items[head]));
      terms += CountTerms(contract_.mask.heads.back());
      if (!CheckTerms(terms)) return;
    }
  }

  bool CheckTerms(int64_t terms) {
    if (terms <= kMaxMaskTermsOverHeads) return true;
    problems_.push_back(
        {"mask.heads", fmt::format("expected at most {} terms over all heads", kMaxMaskTermsOverHeads)});
    return false;
  }

  struct HeadRange {
    int64_t first = 0;
    int64_t last = 0;
  };

  // "3" or "0-3", both ends included.
  static std::optional<HeadRange> ParseRange(std::string_view text) {
    HeadRange range;
    const char* end = text.data() + text.size();
    auto parsed = std::from_chars(text.data(), end, range.first);
    if (parsed.ec != std::errc() || range.first < 0) return std::nullopt;
    range.last = range.first;
    if (parsed.ptr == end) return range;
    if (*parsed.ptr != '-') return std::nullopt;
    parsed = std::from_chars(parsed.ptr + 1, end, range.last);
    if (parsed.ec != std::errc() || parsed.ptr != end || range.last < range.first) return std::nullopt;
    return range;
  }

  void ReadRanges(const DocumentValue& heads) {
    const int64_t num_heads = contract_.shape.num_q_heads;
    if (!head_count_known_ || num_heads < 1 || num_heads > kMaxHeads) return;  // reported as such
    const size_t problems_before = problems_.size();
    std::vector<std::optional<MaskExpr>> by_head(static_cast<size_t>(num_heads));
    int64_t terms = 0;
    for (size_t i = 0; i < heads.items.size(); ++i) {
      const std::string path = fmt::format("mask.heads[{}]", i);
      if (heads.items[i].kind != Kind::kTable) {
        problems_.push_back(
            {path, fmt::format("expected a table with range and expr, found {}", heads.items[i].Describe())});
        continue;
      }
      ContractSection section(path, &heads.items[i], &problems_);
      std::string text;
      const bool has_range = section.Text("range", &text);
      const DocumentValue* value = section.Any("expr");
      section.Finish();
      if (heads.items[i].Find("range") == nullptr) section.Missing("range", "heads, as in \"0-3\"");
      if (value == nullptr) section.Missing("expr", "a mask expression");
      const MaskExpr expr = value == nullptr ? StandIn() : ReadExpr(section.PathOf("expr"), *value);
      if (!has_range) continue;
      const std::optional<HeadRange> range = ParseRange(text);
      if (!range || range->last >= num_heads) {
        section.Problem("range", fmt::format("expected heads from 0 to {}, as in \"0-3\" (both included), found {}",
                                             num_heads - 1, Excerpt(text)));
        continue;
      }
      terms += CountTerms(expr) * (range->last - range->first + 1);
      if (!CheckTerms(terms)) return;
      for (int64_t head = range->first; head <= range->last; ++head) {
        std::optional<MaskExpr>& slot = by_head[static_cast<size_t>(head)];
        if (slot) {
          section.Problem("range", fmt::format("head {} is in an earlier range too, expected every head once", head));
          break;
        }
        slot = expr;
      }
    }
    if (problems_.size() != problems_before) return;
    for (int64_t head = 0; head < num_heads; ++head) {
      std::optional<MaskExpr>& slot = by_head[static_cast<size_t>(head)];
      if (!slot) {
        problems_.push_back({"mask.heads", fmt::format("head {} is in no range, expected every head once", head)});
        return;
      }
      contract_.mask.heads.push_back(std::move(*slot));
    }
  }

  void ReadScore(const DocumentValue* table) {
    ContractSection section("score", table, &problems_);
    Score& score = contract_.score;
    if (contract_.shape.dim_qk > 0) score.scale = DefaultScale(static_cast<double>(contract_.shape.dim_qk));
    section.Real("scale", &score.scale);
    section.Real("softcap", &score.softcap);
    section.Bool("sink_logits", &score.sink_logits);
    section.Finish();
  }

  void ReadTiles(const DocumentValue* table) {
    ContractSection section("tiles", table, &problems_);
    section.Integer("q", &contract_.tiles.q);
    section.Integer("kv", &contract_.tiles.kv);
    section.Text("reason", &contract_.tiles_reason);
    section.Finish();
  }

  void ReadCapacity(const DocumentValue* table) {
    ContractSection section("capacity", table, &problems_);
    section.Capacity("width", &contract_.capacity.width);
    section.Capacity("width_transposed", &contract_.capacity.width_transposed);
    section.Capacity("cleanups", &contract_.capacity.cleanups);
    section.Finish();
  }

  void ReadRouting(const DocumentValue* table) {
    ContractSection section("routing", table, &problems_);
    Routing& routing = contract_.routing.emplace();
    section.Integer("query_tile", &routing.query_tile);
    section.Integer("kv_tile", &routing.kv_tile);
    section.Integer("selected_block", &routing.selected_block);
    section.Integer("block_stride", &routing.block_stride);
    section.Integer("compression_block", &routing.compression_block);
    section.Integer("top_n", &routing.top_n);
    section.Integer("first_blocks", &routing.first_blocks);
    section.Bool("hierarchical", &routing.hierarchical);
    section.Integer("meta_ratio", &routing.meta_ratio);
    section.Integer("meta_keep", &routing.meta_keep);
    section.Integer("union_capacity", &routing.union_capacity);
    section.Finish();
  }

  Result<Contract> Finish() {
    if (!problems_.empty()) {
      // The rules are not tried: they would complain of values that stand in for missing ones.
      problems_.insert(problems_.end(), mask_problems_.begin(), mask_problems_.end());
      return Fail(ErrorCode::kContractField, std::move(problems_));
    }
    std::vector<Violation> violations = std::move(mask_problems_);
    for (Violation& violation : Validate(contract_)) violations.push_back(std::move(violation));
    if (violations.empty()) return std::move(contract_);
    // Where nothing but bitmaps is wrong, their files are.
    if (!mask_error_ && NumBitmapProblems() == violations.size()) mask_error_ = ErrorCode::kBitmapInvalid;
    return Fail(mask_error_.value_or(ErrorCode::kContractInvalid), std::move(violations));
  }

  size_t NumBitmapProblems() const {
    size_t count = 0;
    for (const MaskExpr& head : contract_.mask.heads) count += NumBitmapProblems(head);
    return count;
  }
  size_t NumBitmapProblems(const MaskExpr& expr) const {
    size_t count = 0;
    for (const MaskExpr& child : expr.children) count += NumBitmapProblems(child);
    const bool is_bitmap = expr.op == MaskExpr::Op::kTerm && expr.term.bitmap != nullptr;
    return is_bitmap ? BitmapShapeProblems(contract_.shape, expr.term).size() : count;
  }

  BitmapLoader loader_;
  const MaskTerms* terms_;
  Contract contract_;
  bool head_count_known_ = true;
  std::vector<Violation> problems_;
  std::vector<Violation> mask_problems_;
  std::optional<ErrorCode> mask_error_;
};

}  // namespace

Result<Contract> ParseContract(std::string_view text, const std::string& base_dir, const MaskTerms* terms) {
  if (static_cast<int64_t>(text.size()) > kMaxContractBytes) {
    return Fail(ErrorCode::kTooLarge,
                fmt::format("the contract has {} bytes, expected at most {}", text.size(), kMaxContractBytes));
  }
  const DocumentValue document = TESSERA_TRY(ParseDocument(text));
  return ContractReader(base_dir, terms).Read(document);
}

Result<Contract> ReadContract(const std::string& path, const MaskTerms* terms) {
  const std::string text = TESSERA_TRY(ReadFile(path, kMaxContractBytes));
  const std::string base_dir = std::filesystem::path(path).parent_path().string();
  Result<Contract> contract = ParseContract(text, base_dir.empty() ? "." : base_dir, terms);
  if (!contract) {
    std::string& where = contract.error().where;
    where = where.empty() ? path : fmt::format("{}, {}", path, where);
  }
  return contract;
}

}  // namespace tessera
