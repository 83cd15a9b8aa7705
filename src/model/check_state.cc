// See check_state.h.
#include "model/check_state.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "model/definition.h"

namespace tessera::model {
namespace {

constexpr size_t kMostViolations = 16;

bool IsFinite(const Tensor& tensor) {
  for (int64_t i = 0, n = tensor.NumElements(); i < n; ++i) {
    if (!std::isfinite(tensor.At(i))) return false;
  }
  return true;
}

}  // namespace

Status CheckState(const ModelSpec& spec, const TensorMap& state) {
  std::vector<Violation> violations;
  std::set<std::string> known;
  const auto check = [&](const std::string& name, const std::vector<int64_t>& dims) {
    known.insert(name);
    const auto at = state.find(name);
    const std::string shape = fmt::format("F32 [{}]", fmt::join(dims, ", "));
    if (at == state.end()) {
      violations.push_back({name, fmt::format("expected {}, found nothing", shape)});
    } else if (at->second.type != ElementType::kF32 || at->second.shape != dims) {
      violations.push_back({name, fmt::format("expected {}, found {} [{}]", shape, ToText(at->second.type),
                                              fmt::join(at->second.shape, ", "))});
    } else if (!IsFinite(at->second)) {
      violations.push_back({name, "expected finite numbers, found one that is not"});
    }
  };
  for (const ParameterInfo& info : ParametersOf(spec)) {
    check(info.name, info.dims);
    check(FirstMoment(info.name), info.dims);
    check(SecondMoment(info.name), info.dims);
  }
  for (const auto& [name, tensor] : state) {
    if (!known.contains(name)) violations.push_back({name, "no parameter or moment of this model"});
  }
  if (violations.empty()) return {};
  if (violations.size() > kMostViolations) {
    const size_t more = violations.size() - kMostViolations;
    violations.resize(kMostViolations);
    violations.push_back({"state", fmt::format("and {} more", more)});
  }
  return Fail(ErrorCode::kModelState, std::move(violations));
}

}  // namespace tessera::model
