#include "contract/mask_registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/spelling.h"
#include "contract/limits.h"
#include "contract/mask_terms.h"
#include "contract/registered_set.h"

namespace tessera {
namespace {

// Words of the language that are no terms.
constexpr std::array<std::string_view, 5> kKeywords = {"and", "or", "not", "equal", "document"};

// What is kept of one term's answers: enough for the heads of a few contracts, never without limit.
constexpr size_t kKeptSets = 1024;
constexpr size_t kKeptIntervals = size_t{1} << 22;

// The numbers a term was asked about: q_len, kv_len, offset, head and the parameters.
using Question = std::vector<int64_t>;

std::string NameProblem(std::string_view name) {
  const auto is_small = [](char c) { return c >= 'a' && c <= 'z'; };
  const bool good =
      !name.empty() && name.size() <= kMaxTermNameBytes && is_small(name[0]) &&
      std::all_of(name.begin(), name.end(), [&](char c) { return is_small(c) || (c >= '0' && c <= '9') || c == '_'; });
  if (!good) {
    return fmt::format("expected a letter a-z, then a-z, 0-9 and _, at most {} characters, found {}", kMaxTermNameBytes,
                       Excerpt(name));
  }
  const bool is_term = std::any_of(kTermSpecs.begin(), kTermSpecs.end(),
                                   [&](const TermSpec& built_in) { return built_in.word == name; });
  if (is_term || std::find(kKeywords.begin(), kKeywords.end(), name) != kKeywords.end()) {
    return fmt::format("expected a name that is no word of the mask language, found {}", Excerpt(name));
  }
  return {};
}

std::vector<Violation> SpecProblems(const MaskTermSpec& spec) {
  std::vector<Violation> problems;
  if (std::string problem = NameProblem(spec.name); !problem.empty()) problems.push_back({"name", std::move(problem)});
  if (spec.version < 1 || spec.version > kMaxLength) {
    problems.push_back({"version", fmt::format("expected 1 to {}, found {}", kMaxLength, spec.version)});
  }
  if (spec.min_parameters < 0 || spec.max_parameters > kMaxTermParameters ||
      spec.min_parameters > spec.max_parameters) {
    problems.push_back(
        {"min_parameters, max_parameters", fmt::format("expected an ascending pair from 0 to {}, found "
                                                       "{} and {}",
                                                       kMaxTermParameters, spec.min_parameters, spec.max_parameters)});
  }
  const bool has_runs = spec.runs != nullptr;
  const bool has_cover = spec.cover != nullptr;
  const bool has_allows = spec.allows != nullptr;
  if (has_cover != has_allows || has_runs == has_cover) {
    problems.push_back({"runs, cover, allows", "expected either `runs`, or `cover` and `allows`"});
  }
  return problems;
}

tl::unexpected<Error> Bad(const MaskTerm& term, std::string_view problem) {
  return Fail(ErrorCode::kMaskTermInvalid,
              fmt::format("{}: {}", RegisteredText(*term.registered, term.parameters), problem));
}

// The first row in which two sets differ.
int64_t FirstDifference(const RowSet& a, const RowSet& b) {
  int64_t row = INT64_MAX;
  for (const RowSet& only : {Combine(a, b, SetOp::kMinus), Combine(b, a, SetOp::kMinus)}) {
    if (!only.IsEmpty()) row = std::min<int64_t>(row, only.slabs().front().q_begin);
  }
  return row;
}

// The one thing that registrations of a process share, so that none of them is taken for another.
int64_t NextId() {
  static std::atomic<int64_t> last{0};
  return ++last;
}

}  // namespace

struct RegisteredTerm::Kept {
  std::mutex mutex;  // never held while a function of the spec runs: it may itself read contracts
  std::map<Question, std::shared_ptr<const RowSet>> sets;
  std::deque<Question> oldest_first;
  size_t intervals = 0;

  std::shared_ptr<const RowSet> Find(const Question& question) {
    const std::lock_guard lock(mutex);
    const auto found = sets.find(question);
    return found == sets.end() ? nullptr : found->second;
  }

  // What was kept first stays, so that every caller sees one set.
  std::shared_ptr<const RowSet> Keep(Question question, RowSet set) {
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = sets.try_emplace(std::move(question));
    if (!is_new) return found->second;
    auto shared = std::make_shared<const RowSet>(std::move(set));
    found->second = shared;
    oldest_first.push_back(found->first);
    intervals += shared->NumIntervals();
    while (oldest_first.size() > kKeptSets || (intervals > kKeptIntervals && oldest_first.size() > 1)) {
      const auto oldest = sets.find(oldest_first.front());
      intervals -= oldest->second->NumIntervals();
      sets.erase(oldest);
      oldest_first.pop_front();
    }
    return shared;
  }
};

struct RegisteredTermAccess {
  using Kept = RegisteredTerm::Kept;
  static Kept& Of(const RegisteredTerm& term) { return *term.kept_; }
};

RegisteredTerm::RegisteredTerm(MaskTermSpec spec)
    : MaskTermSpec(std::move(spec)), id_(NextId()), kept_(std::make_unique<Kept>()) {}
RegisteredTerm::~RegisteredTerm() = default;

std::string RegisteredText(const MaskTermSpec& spec, const std::vector<int64_t>& parameters) {
  std::string text = fmt::format("{}@{}", spec.name, spec.version);
  if (!parameters.empty()) text += fmt::format("({})", fmt::join(parameters, ", "));
  return text;
}

std::string ParameterCountText(const MaskTermSpec& spec) {
  if (spec.max_parameters == 0) return "no parameters";
  if (spec.min_parameters == spec.max_parameters) {
    return fmt::format("{} parameter{}", spec.max_parameters, spec.max_parameters == 1 ? "" : "s");
  }
  return fmt::format("{} to {} parameters", spec.min_parameters, spec.max_parameters);
}

std::string ParametersProblem(const MaskTermSpec& spec, const std::vector<int64_t>& parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  if (count < spec.min_parameters || count > spec.max_parameters) {
    return fmt::format("expected {} of {}, found {}", ParameterCountText(spec), spec.name, count);
  }
  for (const int64_t value : parameters) {
    if (value < -kMaxLength || value > kMaxLength) {
      return fmt::format("expected parameters of {} from {} to {}, found {}", spec.name, -kMaxLength, kMaxLength,
                         value);
    }
  }
  return {};
}

Result<std::shared_ptr<const RowSet>> RegisteredSet(const Contract& contract, const MaskTerm& term, int64_t head) {
  const RegisteredTerm& spec = *term.registered;
  RegisteredTermAccess::Kept& sets = RegisteredTermAccess::Of(spec);
  const MaskTermInput input{.q_len = contract.shape.q_len,
                            .kv_len = contract.shape.kv_len,
                            .offset = contract.mask.offset,
                            .head = spec.per_head ? head : 0,
                            .parameters = term.parameters};
  Question question{input.q_len, input.kv_len, input.offset, input.head};
  question.insert(question.end(), term.parameters.begin(), term.parameters.end());
  if (std::shared_ptr<const RowSet> kept = sets.Find(question)) return kept;

  tl::expected<RowSet, std::string> set = AskTerm(spec, input);
  if (!set) return Bad(term, set.error());
  const tl::expected<RowSet, std::string> again = AskTerm(spec, input);
  if (!again) return Bad(term, again.error());
  const auto changed = [&](const RowSet& other) {
    return Bad(term,
               fmt::format("row {}: its function gave two answers to one question", FirstDifference(*again, other)));
  };
  if (*set != *again) return changed(*set);
  std::shared_ptr<const RowSet> kept = sets.Keep(std::move(question), std::move(*set));
  if (*kept != *again) return changed(*kept);  // another thread was told something else meanwhile
  return kept;
}

Status MaskTerms::Register(MaskTermSpec spec) {
  const std::string where = spec.name.empty() ? std::string("a mask term") : Shorten(spec.name, kMaxTermNameBytes);
  if (std::vector<Violation> problems = SpecProblems(spec); !problems.empty()) {
    return Fail(ErrorCode::kMaskTermInvalid, std::move(problems), where);
  }
  // Made before the lock, and dropped after it: moving and destroying the functions runs the user's code.
  const std::shared_ptr<const RegisteredTerm> term(new RegisteredTerm(std::move(spec)));
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = terms_.try_emplace(term->name, term);
  if (is_new) return {};
  return Fail(ErrorCode::kMaskTermInvalid,
              fmt::format("version {} is registered already; a name is registered once", found->second->version),
              where);
}

std::shared_ptr<const RegisteredTerm> MaskTerms::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = terms_.find(name);
  return found == terms_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const RegisteredTerm>> MaskTerms::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const RegisteredTerm>> terms;
  for (const auto& [name, term] : terms_) terms.push_back(term);
  return terms;
}

}  // namespace tessera
