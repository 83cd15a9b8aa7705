#include "cpu/cases.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::bench {
namespace {

using Kind = Rule::Kind;
constexpr Machine kArm = Machine::kArm;
constexpr Machine kX86 = Machine::kX86;
constexpr Mode kForward = Mode::kForward;
constexpr Mode kBoth = Mode::kBoth;

Rule Sdpa(double factor) { return {Kind::kPeer, factor, "sdpa"}; }
Rule Flex(double factor) { return {Kind::kPeer, factor, "flex"}; }
Rule Best(double factor) { return {Kind::kBest, factor}; }
Rule OfRoof(double factor) { return {Kind::kRoof, factor}; }
Rule OfMatmul(double factor) { return {Kind::kMatmul, factor}; }
Rule OfCausal(double factor) { return {Kind::kCausal, factor}; }

std::vector<Case> MakeTableCases() {
  const std::string f32 = "causal-4k-d128-f32";
  const std::string bf16 = "causal-4k-d128-bf16";
  return {
      {.name = f32,
       .causal = f32,
       .asked = {{kArm, kForward, Sdpa(1.25), OfRoof(0.80)},
                 {kArm, kBoth, Sdpa(1.15), OfRoof(0.75)},
                 {kX86, kForward, Sdpa(1.05), OfMatmul(0.82)},
                 {kX86, kBoth, Sdpa(1.05), OfMatmul(0.82)}}},
      {.name = "causal-4k-d64-f32",
       .dim = 64,
       .causal = "causal-4k-d64-f32",
       .asked = {{kArm, kForward, Sdpa(1.3), OfRoof(0.72)},
                 {kArm, kBoth, Sdpa(1.2), OfRoof(0.70)},
                 {kX86, kForward},
                 {kX86, kBoth}}},
      {.name = "causal-1k-d64-f32",
       .tokens = 1024,
       .dim = 64,
       .causal = "causal-4k-d64-f32",
       .asked = {{kArm, kForward, Sdpa(1.7)}, {kX86, kForward}}},
      {.name = bf16,
       .dtype = DType::kBf16,
       .causal = bf16,
       .asked = {{kArm, kForward, Sdpa(1.8), OfRoof(0.60)},
                 {kX86, kForward, Sdpa(0.8), Sdpa(1.3)},
                 {kX86, kBoth, Sdpa(1.1), Sdpa(2.0)}}},
      {.name = "causal-1k-d128-bf16",
       .tokens = 1024,
       .dtype = DType::kBf16,
       .causal = bf16,
       .asked = {{kArm, kBoth, Best(4.0), OfRoof(0.45)}, {kX86, kBoth}}},
      {.name = "window-4k-d128-f32",
       .mask = MaskKind::kWindow,
       .causal = f32,
       .asked = {{kArm, kForward, OfCausal(0.85)},
                 {kArm, kBoth, OfCausal(0.85)},
                 {kX86, kForward, Flex(2.0), OfCausal(0.85)},
                 {kX86, kBoth, Sdpa(7.0), OfCausal(0.85)}}},
      {.name = "documents-4k-d128-f32",
       .mask = MaskKind::kDocuments,
       .causal = f32,
       .asked = {{kArm, kForward, OfCausal(0.8)},
                 {kArm, kBoth, OfCausal(0.8)},
                 {kX86, kForward, Flex(2.0), OfCausal(0.8)},
                 {kX86, kBoth, Sdpa(12.0), OfCausal(0.8)}}},
      {.name = "random_documents-4k-d128-f32",
       .mask = MaskKind::kRandomDocuments,
       .causal = f32,
       .asked = {{kArm, kForward}, {kArm, kBoth}, {kX86, kForward}, {kX86, kBoth}}},
      {.name = "softcap-4k-d128-f32",
       .softcap = 30,
       .causal = f32,
       .asked = {{kArm, kForward, OfCausal(0.85)}, {kX86, kForward, Flex(1.8), OfCausal(0.85)}}},
      {.name = "softcap-4k-d128-bf16",
       .dtype = DType::kBf16,
       .softcap = 30,
       .causal = bf16,
       .asked = {{kArm, kForward}, {kX86, kForward, Flex(2.0), OfCausal(0.7)}}},
      {.name = "gqa-4k-d128-f32",
       .kv_heads = 2,
       .causal = f32,
       .asked = {{kArm, kForward, Sdpa(1.25), OfRoof(0.80)},
                 {kArm, kBoth, Sdpa(1.15), OfRoof(0.75)},
                 {kX86, kForward},
                 {kX86, kBoth}}},
  };
}

}  // namespace

std::string_view ToText(Mode mode) { return mode == Mode::kForward ? "forward" : "forward_backward"; }

std::string_view ToText(Machine machine) { return machine == Machine::kX86 ? "x86-64" : "aarch64"; }

Machine ThisMachine() {
#if defined(__x86_64__)
  return Machine::kX86;
#else
  return Machine::kArm;
#endif
}

std::string ToText(const Rule& rule) {
  switch (rule.kind) {
    case Kind::kPeer:
      return fmt::format("{:g}x {}", rule.factor, rule.peer);
    case Kind::kBest:
      return fmt::format("{:g}x the best peer", rule.factor);
    case Kind::kRoof:
      return fmt::format("{:.0f}% of roof", rule.factor * 100);
    case Kind::kMatmul:
      return fmt::format("{:.0f}% of matmul", rule.factor * 100);
    case Kind::kCausal:
      return fmt::format("{:g}x own causal", rule.factor);
    case Kind::kNone:
      break;
  }
  return {};
}

std::vector<Mode> Case::ModesOn(Machine machine) const {
  std::vector<Mode> modes;
  for (const Asked& row : asked) {
    if (row.machine == machine) modes.push_back(row.mode);
  }
  return modes;
}

const Asked* Case::Find(Machine machine, Mode mode) const {
  const auto found = std::find_if(asked.begin(), asked.end(),
                                  [&](const Asked& row) { return row.machine == machine && row.mode == mode; });
  return found == asked.end() ? nullptr : &*found;
}

const std::vector<Case>& TableCases() {
  static const std::vector<Case> kCases = MakeTableCases();
  return kCases;
}

}  // namespace tessera::bench
