// See cut_program.h.
#include "shard/cut_program.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "lanes/xla/kernel_program.h"
#include "lanes/xla/kernel_tables.h"
#include "lanes/xla/lowerings.h"
#include "lanes/xla/xla.h"
#include "shard/program_table.h"

namespace tessera::shard {
ElementType DeclaredType(stablehlo::Element element) {
  using stablehlo::Element;
  switch (element) {
    case Element::kF32:
      return ElementType::kF32;
    case Element::kBf16:
      return ElementType::kBf16;
    case Element::kF16:
      return ElementType::kF16;
    case Element::kI8:
      return ElementType::kI8;
    case Element::kI16:
      return ElementType::kI16;
    case Element::kI1:
      return ElementType::kBool;
    case Element::kI32:
    case Element::kUi32:
      break;
  }
  return ElementType::kI32;
}

namespace {

Status CheckKernels(const stablehlo::ProgramSpec& local, const PlanView& plan, const Target& target) {
  Decision fits = lanes::xla::CheckSize(local);
  if (fits.accepted) fits = lanes::xla::CheckKernelPlan(local, plan, target);
  if (fits.accepted) return {};
  return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {} ({}; {})", kXlaPallas, ReasonText(fits.reason),
                                                   ReasonMeaning(fits.reason), fits.detail));
}

}  // namespace

Result<CutProgram> LowerCut(const ContextPlan& plan, ContextPass pass, std::string_view lane, const Target& target) {
  const bool is_forward = pass == ContextPass::kForward;
  // What a TPU's compiler has in place of rounds.
  const bool is_ragged = plan.exchange == Exchange::kSparse && target.kind == TargetKind::kTpu;
  const bool may_bring = !is_forward && lane == kXlaChunked && !is_ragged;
  CutProgram out{.spec = TESSERA_TRY(ContextSpecOf(
                     plan, {.received = {}, .brings_rows = may_bring && plan.gradients == GradientWay::kRows})),
                 .lowered = {}};
  out.spec.is_ragged = is_ragged;
  const auto lower = [&](const stablehlo::Program* walk) {
    return is_forward ? stablehlo::LowerContextForward(out.spec, walk)
                      : stablehlo::LowerContextBackward(out.spec, walk);
  };
  if (lane == kXlaChunked) {
    out.lowered = TESSERA_TRY(lower(nullptr));
    return out;
  }
  if (lane != kXlaPallas) {
    return Fail(ErrorCode::kContextCut,
                fmt::format("tokens are cut for {} and {}, found {}", kXlaChunked, kXlaPallas, lane), "lane");
  }
  const PlanView& view = plan.plan->view();
  out.spec.local.stored_tiles = lanes::xla::StoredCapacity(view);
  out.spec.local.is_wide = out.spec.kind == stablehlo::ContextKind::kRing;  // shares are merged in f32
  lanes::xla::FitTarget(out.spec.local, target);
  TESSERA_TRY(CheckKernels(out.spec.local, view, target));
  const stablehlo::Program walk =
      TESSERA_TRY(lanes::xla::LowerKernels(out.spec.local, is_forward ? Pass::kForward : Pass::kBackward));
  out.lowered = TESSERA_TRY(lower(&walk));
  return out;
}

namespace {

DeclaredProgram DeclaredBy(const stablehlo::ContextProgram& lowered) {
  const stablehlo::DeviceAxis& devices = lowered.devices;
  const auto declared = [&](const std::vector<stablehlo::NamedType>& tensors, const std::vector<int64_t>& axes) {
    std::vector<ProgramTensor> out;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const stablehlo::Type whole = stablehlo::WholeType(tensors[i].type, axes[i], devices.size);
      out.push_back({tensors[i].name, DeclaredType(whole.element), whole.dims, axes[i]});
    }
    return out;
  };
  return {declared(lowered.program.inputs, devices.inputs), declared(lowered.program.outputs, devices.outputs)};
}
Mesh MeshOf(const ContextPlan& plan) { return Mesh{{{std::string(kContextAxis), plan.shards}}}; }

}  // namespace

Result<ShardTable> TableOf(const ContextPlan& plan, ContextPass pass, const stablehlo::ContextProgram& lowered,
                           std::optional<int64_t> max_device_bytes) {
  return MakeProgramTable(MeshOf(plan), KnownOfCut(plan, pass == ContextPass::kBackward), DeclaredBy(lowered),
                          max_device_bytes);
}

Result<ShardTable> TableOfBring(const ContextPlan& plan, const stablehlo::ContextProgram& lowered) {
  KnownTensors known = KnownOfCut(plan, false);
  known.outputs.clear();  // a forward's, which others give
  std::erase_if(known.inputs, [&](const ProgramTensor& tensor) {
    const bool is_brought = tensor.name == "k" || tensor.name == "v";
    return !is_brought && !(tensor.name == "q" && plan.exchange == Exchange::kHeads);
  });
  return MakeProgramTable(MeshOf(plan), known, DeclaredBy(lowered), {});
}

ProgramTensors TensorsOf(const stablehlo::ContextProgram& lowered) {
  ProgramTensors tensors;
  for (const stablehlo::NamedType& input : lowered.program.inputs) tensors.arguments.push_back(input.name);
  for (const stablehlo::NamedType& output : lowered.program.outputs) tensors.results.push_back(output.name);
  return tensors;
}

}  // namespace tessera::shard
