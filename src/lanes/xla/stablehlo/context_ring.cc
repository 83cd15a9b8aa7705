// Context parallelism around a ring: hops are written out one after the other, each naming only the pairs that need it,
// and a shard's keys are attended to by the program of one device, as a function, when they have come. Where a backend
// is asynchronous the next hop travels meanwhile.
#include "lanes/xla/stablehlo/context_ring.h"

#include <fmt/format.h>

#include <limits>

#include "lanes/xla/stablehlo/tiles.h"

namespace tessera::stablehlo {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr const char* kWalk = "walk";

class Ring {
 public:
  Ring(const ContextSpec& spec, bool is_backward, const Program* walk)
      : spec_(spec),
        local_(spec.local.shape),
        pass_(
            fmt::format("context_{}_ring{}", is_backward ? "backward" : "forward", walk == nullptr ? "" : "_kernels")),
        has_kernels_(walk != nullptr),
        walk_(walk != nullptr ? Result<Program>(*walk)
              : is_backward   ? stablehlo::LowerBackward(spec.local)
                              : stablehlo::LowerForward(spec.local)),
        inputs_(Inputs()),
        b_(BeginModule(spec.local, pass_, inputs_)) {}

  Result<ContextProgram> LowerForward() {
    if (!walk_) return tl::unexpected(walk_.error());
    b_.AddFunction(kWalk, walk_->text);
    Values shares, stats;
    Value tiles;
    ForHops([&](int64_t hop, const Value& k, const Value& v) {
      const Values out = Walk(hop, k, v);
      shares.push_back(b_.Reshape(out[0], {local_.batch, local_.num_q_heads, local_.q_len, local_.dim_v}));
      stats.push_back(b_.Reshape(out[1], {local_.batch, local_.num_q_heads, local_.q_len}));
      tiles = hop == 0 ? out[3] : b_.Add(tiles, out[3]);
    });
    const auto [o, lse] = Merge(shares, stats);
    return Finish(
        {{"o", b_.Convert(o, ElementOf(local_.dtype)), 2}, {"lse", lse, 2}, {"tiles", b_.Reshape(tiles, {1}), 0}});
  }

  // Weights come from the log-sum-exp of all keys, so that shares are added and nothing is merged.
  Result<ContextProgram> LowerBackward() {
    if (!walk_) return tl::unexpected(walk_.error());
    b_.AddFunction(kWalk, walk_->text);
    Value dq, keys, tiles;
    const std::vector<int64_t> of_keys = {local_.batch, local_.num_kv_heads, local_.kv_len};
    const auto with = [](std::vector<int64_t> dims, int64_t dim) {
      dims.push_back(dim);
      return dims;
    };
    ForHops([&](int64_t hop, const Value& k, const Value& v) {
      const Values out = Walk(hop, k, v);
      const Value own = b_.Reshape(out[0], {local_.batch, local_.num_q_heads, local_.q_len, local_.dim_qk});
      const Value both = b_.Concatenate(
          {b_.Reshape(out[1], with(of_keys, local_.dim_qk)), b_.Reshape(out[2], with(of_keys, local_.dim_v))}, 3);
      dq = hop == 0 ? own : b_.Add(dq, own);
      keys = hop == 0 ? both : b_.Add(keys, b_.Permute(both, spec_.returns[static_cast<size_t>(hop) - 1]));
      tiles = hop == 0 ? out[3] : b_.Add(tiles, out[3]);
    });
    return Finish({{"dq", dq, 2},
                   {"dk", Dims(keys, 0, local_.dim_qk), 2},
                   {"dv", Dims(keys, local_.dim_qk, local_.dim_qk + local_.dim_v), 2},
                   {"tiles", b_.Reshape(tiles, {1}), 0}});
  }

 private:
  Result<ContextProgram> Finish(const std::vector<ContextOutput>& outputs) {
    std::vector<int64_t> axes;
    for (const NamedType& input : inputs_) axes.push_back(AxisOf(input.name));
    return FinishContext(b_, spec_, {ModuleName(pass_, spec_.local.class_key), inputs_, std::move(axes)}, outputs);
  }

  int64_t NumHops() const { return static_cast<int64_t>(spec_.steps.size()) + 1; }

  // The function's, those of a hop once for each.
  std::vector<NamedType> Inputs() const {
    std::vector<NamedType> inputs;
    for (const NamedType& input : walk_ ? walk_->inputs : std::vector<NamedType>{}) {
      if (!HasHops(input.name)) inputs.push_back(input);
    }
    for (int64_t hop = 0; hop < NumHops(); ++hop) {
      for (const NamedType& input : walk_ ? walk_->inputs : std::vector<NamedType>{}) {
        if (HasHops(input.name)) inputs.push_back({HopInput(input.name, hop), input.type});
      }
    }
    return inputs;
  }
  static bool IsOfTokens(const std::string& name) {
    for (const char* of_tokens : {"q", "k", "v", "do", "lse", "delta"}) {
      if (name == of_tokens) return true;
    }
    return false;
  }
  static bool IsOfAll(const std::string& name) { return name == "scale" || name == "softcap" || name == "part"; }
  // Which of the walk's operands are one for each hop: of kernels every table, since each speaks of both sides.
  bool HasHops(const std::string& name) const {
    return has_kernels_ ? !IsOfTokens(name) && !IsOfAll(name) : IsOfHop(name);
  }
  int64_t AxisOf(const std::string& name) const {
    if (IsOfTokens(name)) return 2;
    if (has_kernels_) return IsOfAll(name) ? kWhole : 0;
    if (name == "q_documents" || name.starts_with("kv_")) return 1;
    return name.starts_with("counts") || name.starts_with("slots") ? 0 : kWhole;
  }

  Value Dims(const Value& x, int64_t begin, int64_t end) {
    std::vector<int64_t> from(4, 0);
    std::vector<int64_t> to = x.type.dims;
    from[3] = begin;
    to[3] = end;
    return b_.Slice(x, from, to);
  }

  // visit(hop, keys, values): a device's own, and then what comes from its neighbour each time.
  template <class Visit>
  void ForHops(const Visit& visit) {
    Value both = b_.Concatenate({b_.Input("k"), b_.Input("v")}, 3);
    visit(0, b_.Input("k"), b_.Input("v"));
    for (int64_t hop = 1; hop < NumHops(); ++hop) {
      both = b_.Permute(both, spec_.steps[static_cast<size_t>(hop) - 1]);
      visit(hop, Dims(both, 0, local_.dim_qk), Dims(both, local_.dim_qk, local_.dim_qk + local_.dim_v));
    }
  }

  Values Walk(int64_t hop, const Value& k, const Value& v) {
    Values operands;
    for (const NamedType& input : walk_->inputs) {
      if (input.name == "k") {
        operands.push_back(k);
      } else if (input.name == "v") {
        operands.push_back(v);
      } else {
        operands.push_back(b_.Input(HasHops(input.name) ? HopInput(input.name, hop) : input.name));
      }
    }
    std::vector<Type> results;
    for (const NamedType& output : walk_->outputs) results.push_back(output.type);
    return b_.CallFunction(kWalk, operands, results);
  }

  // Each share times its part of all weights. A hop that a row saw no key of counts by being left out, not by a factor
  // of zero: zero times what is not finite is not zero.
  std::pair<Value, Value> Merge(const Values& shares, const Values& stats) {
    const Value none = b_.Constant({Element::kF32, {}}, -kInf);
    Value most = stats[0];
    for (size_t i = 1; i < stats.size(); ++i) most = b_.Max(most, stats[i]);
    const Value is_empty = b_.Is(Compare::kEq, most, none);
    const Value zero = b_.Constant({Element::kF32, {}}, 0.0);
    const Value shift = b_.Select(is_empty, zero, most);
    Value sum, o;
    for (size_t i = 0; i < stats.size(); ++i) {
      const Value sees_none = b_.Is(Compare::kEq, stats[i], none);
      const Value weight = b_.Select(sees_none, zero, b_.Exp(b_.Sub(stats[i], shift)));
      const Value weighted = b_.Mul(shares[i], b_.Spread(weight, shares[i].type.dims, {0, 1, 2}));
      const Value share = b_.Select(b_.Spread(sees_none, weighted.type.dims, {0, 1, 2}), zero, weighted);
      sum = i == 0 ? weight : b_.Add(sum, weight);
      o = i == 0 ? share : b_.Add(o, share);
    }
    const Value one_or_sum = b_.Select(is_empty, b_.Constant({Element::kF32, {}}, 1.0), sum);
    const Value merged = b_.Div(o, b_.Spread(one_or_sum, o.type.dims, {0, 1, 2}));
    return {merged, b_.Select(is_empty, none, b_.Add(shift, b_.Log(one_or_sum)))};
  }

  const ContextSpec& spec_;
  const Shape& local_;
  const std::string pass_;
  const bool has_kernels_;
  const Result<Program> walk_;  // the program of one device, on one shard's keys
  std::vector<NamedType> inputs_;
  Builder b_;
};

}  // namespace

std::string HopInput(const std::string& name, int64_t hop) { return fmt::format("{}_hop{}", name, hop); }

bool IsOfHop(const std::string& name) {
  return name.starts_with("counts_") || name.starts_with("slots_") || name == "kv_documents" || name == "kv_ranks";
}

Result<ContextProgram> LowerRing(const ContextSpec& spec, bool is_backward, const Program* walk) {
  Ring ring(spec, is_backward, walk);
  return is_backward ? ring.LowerBackward() : ring.LowerForward();
}

}  // namespace tessera::stablehlo
