// Norms and products by the cpu lane's kernels, as calls of this process from inside a compiled program. They keep
// nothing: what they work in is a result that nobody reads.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "base/try.h"
#include "lanes/cpu/kernels.h"
#include "lanes/cpu/matrix_product.h"
#include "lanes/cpu/norm.h"
#include "lanes/scratch.h"
#include "model/layer.h"

namespace tessera::model {
namespace {

namespace cpu = lanes::cpu;
using pjrt::ffi::Buffer;
using stablehlo::Builder;
using stablehlo::Element;
using stablehlo::Type;
using stablehlo::Value;
using stablehlo::Values;

constexpr std::string_view kProductName = "tessera_model_product";
constexpr std::string_view kNormName = "tessera_model_norm";
constexpr std::string_view kNormBackName = "tessera_model_norm_back";

cpu::Kernel KernelAt(int64_t place) {
  const cpu::KernelRow& row = cpu::KernelTable()[static_cast<size_t>(place)];
  return row.make(row);
}

// A kernel whose instructions this machine has, or the program is of another one.
Result<cpu::Kernel> KernelOf(const pjrt::HostCall& call) {
  const auto table = cpu::KernelTable();
  const int64_t place = call.Number("kernel").value_or(-1);
  if (place >= 0 && place < static_cast<int64_t>(table.size())) {
    const cpu::KernelRow& row = table[static_cast<size_t>(place)];
    if (cpu::FindKernel(row.dtype, row.isa, row.key_block) != nullptr) return row.make(row);
  }
  return Fail(ErrorCode::kProgramMismatch,
              fmt::format("a program calls kernel {}, which is not of this machine", place));
}

Status CheckCall(const pjrt::HostCall& call, size_t operands, size_t results) {
  if (call.num_operands() == operands && call.num_results() == results) return {};
  return Fail(ErrorCode::kProgramMismatch, "a program calls a layer with other operands than this version's");
}

int64_t Threads(const pjrt::HostCall& call) { return std::max<int64_t>(call.Number("threads").value_or(1), 1); }

const float* Floats(const Buffer& buffer) { return static_cast<const float*>(buffer.data); }
float* MutableFloats(const Buffer& buffer) { return static_cast<float*>(buffer.data); }

cpu::MatrixProduct ProductOf(std::span<const int64_t> a, std::span<const int64_t> b, stablehlo::Contract2 axes) {
  return {.rows = a[static_cast<size_t>(1 - axes.lhs)],
          .inner = a[static_cast<size_t>(axes.lhs)],
          .columns = b[static_cast<size_t>(1 - axes.rhs)],
          .a_is_turned = axes.lhs == 0,
          .b_is_turned = axes.rhs == 1};
}

// a, b -> c, scratch
Status Multiply(const pjrt::HostCall& call) {
  TESSERA_TRY(CheckCall(call, 2, 2));
  const cpu::Kernel kernel = TESSERA_TRY(KernelOf(call));
  const Buffer& a = call.Operand(0);
  const Buffer& b = call.Operand(1);
  const stablehlo::Contract2 axes{call.Number("lhs").value_or(1), call.Number("rhs").value_or(0)};
  cpu::MatrixProduct product =
      ProductOf({a.dims, static_cast<size_t>(a.rank)}, {b.dims, static_cast<size_t>(b.rank)}, axes);
  product.a = static_cast<const std::byte*>(a.data);
  product.b = static_cast<const std::byte*>(b.data);
  product.c = MutableFloats(call.Result(0));
  const Buffer& scratch = call.Result(1);
  const auto at = reinterpret_cast<uintptr_t>(scratch.data);
  const auto skip = static_cast<int64_t>(RoundUp(at, static_cast<uintptr_t>(lanes::kScratchAlign)) - at);
  if (cpu::ScratchBytes(kernel, product) + skip > pjrt::NumElements(scratch)) {
    return Fail(ErrorCode::kProgramMismatch, "a program gives a product less memory than this version's");
  }
  cpu::Multiply(kernel, product, static_cast<std::byte*>(scratch.data) + skip, Threads(call));
  return {};
}

// x, weight -> y, scale
Status Norm(const pjrt::HostCall& call) {
  TESSERA_TRY(CheckCall(call, 2, 2));
  const cpu::Kernel kernel = TESSERA_TRY(KernelOf(call));
  const Buffer& x = call.Operand(0);
  const auto bits = static_cast<uint32_t>(call.Number("eps_bits").value_or(0));
  float eps = 0.0F;
  std::memcpy(&eps, &bits, sizeof(eps));
  cpu::Normalise(kernel,
                 {.x = Floats(x),
                  .weight = Floats(call.Operand(1)),
                  .eps = eps,
                  .num_rows = x.dims[0],
                  .width = x.dims[1],
                  .y = MutableFloats(call.Result(0)),
                  .scale = MutableFloats(call.Result(1))},
                 Threads(call));
  return {};
}

// dy, x, scale, weight -> dx, dweight, scratch
Status NormBack(const pjrt::HostCall& call) {
  TESSERA_TRY(CheckCall(call, 4, 3));
  const cpu::Kernel kernel = TESSERA_TRY(KernelOf(call));
  const Buffer& x = call.Operand(1);
  cpu::NormaliseBack(kernel,
                     {.dy = Floats(call.Operand(0)),
                      .x = Floats(x),
                      .scale = Floats(call.Operand(2)),
                      .weight = Floats(call.Operand(3)),
                      .num_rows = x.dims[0],
                      .width = x.dims[1],
                      .dx = MutableFloats(call.Result(0)),
                      .dweight = MutableFloats(call.Result(1))},
                     MutableFloats(call.Result(2)), Threads(call));
  return {};
}

Builder::HostCall CallOf(std::string_view name, int64_t kernel, const LayerOps& ops) {
  return {std::string(name), {{"kernel", kernel}, {"threads", ops.threads}}};
}

}  // namespace

Value CallProduct(Builder& b, const LayerOps& ops, const Values& operands, stablehlo::Contract2 axes) {
  const cpu::MatrixProduct product = ProductOf(operands[0].type.dims, operands[1].type.dims, axes);
  const int64_t bytes = cpu::ScratchBytes(KernelAt(ops.product_kernel), product) + lanes::kScratchAlign;
  Builder::HostCall call = CallOf(kProductName, ops.product_kernel, ops);
  call.numbers.emplace_back("lhs", axes.lhs);
  call.numbers.emplace_back("rhs", axes.rhs);
  const std::vector<Type> results = {{Element::kF32, {product.rows, product.columns}}, {Element::kI8, {bytes}}};
  return b.CallHost(call, operands, results)[0];
}

CalledNorm CallNorm(Builder& b, const LayerOps& ops, const Values& x_and_weight, double eps) {
  const auto narrow = static_cast<float>(eps);
  uint32_t bits = 0;
  std::memcpy(&bits, &narrow, sizeof(bits));
  Builder::HostCall call = CallOf(kNormName, ops.norm_kernel, ops);
  call.numbers.emplace_back("eps_bits", bits);
  const Type& x = x_and_weight[0].type;
  const Values out = b.CallHost(call, x_and_weight, {x, {Element::kF32, {x.dims[0]}}});
  return {out[0], out[1]};
}

Values CallNormBack(Builder& b, const LayerOps& ops, const Values& operands) {
  const Type& x = operands[1].type;
  Values out = b.CallHost(CallOf(kNormBackName, ops.norm_kernel, ops), operands,
                          {x, operands[3].type, {Element::kF32, {cpu::NormBlocks(x.dims[0]), x.dims[1]}}});
  out.pop_back();
  return out;
}

std::span<const pjrt::HostFunction> LayerFunctions() {
  static constexpr pjrt::HostFunction kFunctions[] = {{kProductName, &pjrt::Answer<&Multiply>},
                                                      {kNormName, &pjrt::Answer<&Norm>},
                                                      {kNormBackName, &pjrt::Answer<&NormBack>}};
  return kFunctions;
}

}  // namespace tessera::model
