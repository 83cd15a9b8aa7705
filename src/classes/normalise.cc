// Which class a request belongs to. Sizes go up to the next of a short list; everything else of the class follows from
// the request written at those sizes, so that the class key here is the one a plan of it carries.
#include "tessera/normalise.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "base/checked.h"
#include "classes/at_class.h"
#include "contract/limits.h"
#include "tessera/planner.h"

namespace tessera {
namespace {

std::vector<int64_t> MakeSizes(int64_t first, int64_t last) {
  std::vector<int64_t> sizes;
  for (int64_t power = first; power <= last; power *= 2) {
    sizes.push_back(power);
    if (power >= 2 && power + power / 2 <= last) sizes.push_back(power + power / 2);
  }
  return sizes;
}

bool HasRegistered(const MaskExpr& expr) {
  return (expr.op == MaskExpr::Op::kTerm && expr.term.kind == TermKind::kRegistered) ||
         std::any_of(expr.children.begin(), expr.children.end(), HasRegistered);
}

// Whether a pair outside the valid lengths can be seen: then `and valid` would not be what the mask says.
Result<bool> ImpliesValid(const Contract& contract) {
  Contract cut = contract;
  for (MaskExpr& head : cut.mask.heads) head = AndTerm(std::move(head), TermKind::kValid);
  const Result<std::string> own = ContractKey(contract);
  if (!own) return tl::unexpected(own.error());
  return ContractKey(cut).map([&](const std::string& key) { return key == *own; });
}

Result<PaddingCut> CutOf(const Contract& contract) {
  const Result<MaskFacts> facts = DescribeMask(contract);
  if (!facts) return tl::unexpected(facts.error());
  if (!facts->needs_valid) return PaddingCut::kValid;
  const Result<bool> implied = ImpliesValid(contract);
  if (!implied) return tl::unexpected(implied.error());
  if (*implied) return PaddingCut::kValid;
  return facts->names_documents ? PaddingCut::kNone : PaddingCut::kDocuments;
}

class Rounding {
 public:
  int64_t Up(const char* field, int64_t size, const std::vector<int64_t>& sizes) {
    const auto at = std::lower_bound(sizes.begin(), sizes.end(), size);
    if (at != sizes.end()) return *at;
    violations.push_back({field, fmt::format("at most {}, the largest class, got {}", sizes.back(), size)});
    return size;
  }
  std::vector<Violation> violations;
};

Result<Shape> RoundShape(const Contract& contract, PaddingCut cut) {
  const Shape& asked = contract.shape;
  const bool keeps_terms = std::any_of(contract.mask.heads.begin(), contract.mask.heads.end(), HasRegistered);
  const bool keeps_lengths = keeps_terms || cut == PaddingCut::kNone;
  Rounding round;
  Shape shape = asked;
  // Kept sizes are held to the same limits: a class is never larger than the list.
  const int64_t q_len = round.Up("shape.q_len", asked.q_len, ClassLengths());
  const int64_t kv_len = round.Up("shape.kv_len", asked.kv_len, ClassLengths());
  if (!keeps_lengths) {
    shape.q_len = q_len;
    shape.kv_len = kv_len;
  }
  if (cut != PaddingCut::kNone) shape.batch = round.Up("shape.batch", asked.batch, ClassCounts());
  int64_t group = asked.num_q_heads / asked.num_kv_heads;
  if (!keeps_terms) {
    shape.num_kv_heads = round.Up("shape.num_kv_heads", asked.num_kv_heads, ClassCounts());
    if (!contract.routing) group = round.Up("shape.num_q_heads", group, ClassCounts());
  }
  shape.num_q_heads = shape.num_kv_heads * group;
  if (shape.num_q_heads > kMaxHeads) {
    round.violations.push_back(
        {"shape.num_q_heads", fmt::format("at most {} once rounded, got {}", kMaxHeads, shape.num_q_heads)});
  }
  if (!round.violations.empty()) return Fail(ErrorCode::kClassRefused, std::move(round.violations), "class");
  return shape;
}

// What a padded worklist holds for all heads, going forward.
int64_t SlotsOf(const Shape& shape, const ClassShape& sizes) {
  return CheckedProduct(std::array{shape.batch, shape.num_q_heads, sizes.rows[0], sizes.width[0]}).value_or(INT64_MAX);
}

// Room for a cleanup in every slot: unlike the number of slots a mask really has, the same for every window of a width.
int64_t CleanupsOf(const ClassShape& sizes) {
  int64_t slots = 0;
  for (size_t d = 0; d < sizes.rows.size(); ++d) slots += sizes.rows[d] * sizes.width[d];
  const std::optional<int64_t> all = CheckedMul(slots, sizes.masks);
  return all && *all <= kMaxLength ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(*all))) : 0;
}

}  // namespace

const std::vector<int64_t>& ClassLengths() {
  static const std::vector<int64_t> kLengths = MakeSizes(16, int64_t{1} << 20);
  return kLengths;
}

const std::vector<int64_t>& ClassCounts() {
  static const std::vector<int64_t> kCounts = MakeSizes(1, kMaxBatch);
  return kCounts;
}

Result<RequestClass> Normalise(const Contract& contract, const Target& target, const PlanOptions& options) {
  const Result<PaddingCut> cut = CutOf(contract);
  if (!cut) return tl::unexpected(cut.error());
  const Result<Shape> shape = RoundShape(contract, *cut);
  if (!shape) return tl::unexpected(shape.error());
  RequestClass at;
  at.request = contract.shape;
  at.shape = *shape;
  at.cut = *cut;
  const Result<ClassShape> exact = MakeClassShape(contract, target, options);
  if (!exact) return tl::unexpected(exact.error());
  // Twice: once for the widths, once with the capacities that follow from them.
  Result<Contract> padded = AtClass(contract, at);
  if (!padded) return tl::unexpected(padded.error());
  Result<ClassShape> sizes = MakeClassShape(*padded, target, options);
  if (!sizes) return tl::unexpected(sizes.error());
  at.sizes.cleanups = CleanupsOf(*sizes);
  padded = AtClass(contract, at);
  if (!padded) return tl::unexpected(padded.error());
  sizes = MakeClassShape(*padded, target, options);
  if (!sizes) return tl::unexpected(sizes.error());
  Result<std::string> key = ClassKey(*padded, *sizes);
  if (!key) return tl::unexpected(key.error());
  at.sizes = *sizes;
  at.key = std::move(*key);
  at.exact_slots = SlotsOf(contract.shape, *exact);
  at.class_slots = SlotsOf(at.shape, *sizes);
  return at;
}

}  // namespace tessera
