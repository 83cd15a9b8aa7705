// A kernel's text: any bytes give an error or a module that prints to a text which reads as the same; the verifier and,
// on small kernels, the interpreter take whatever was read.
#include "fuzz.h"
#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/parse.h"
#include "lanes/xla/mosaic/print.h"
#include "lanes/xla/mosaic/signature.h"
#include "lanes/xla/mosaic/verify.h"

namespace tessera {
namespace {

constexpr int64_t kMostElements = 4096;  // of all that a run touches, so that it takes no time
constexpr int64_t kMostSteps = 16;

bool IsSmall(const mosaic::Module& module) {
  int64_t elements = 0;
  for (const mosaic::Function& function : module.functions) {
    for (const mosaic::ValueInfo& value : function.values) {
      const int64_t own = mosaic::NumElements(value.type);
      if (own > kMostElements) return false;
      elements += own;
    }
  }
  return elements <= 64 * kMostElements;
}

// Operands of zeros, each as large as its window.
void Run(const mosaic::Module& module, const mosaic::Signature& signature) {
  int64_t steps = 1;
  for (const int64_t bound : signature.grid) {
    if (bound == mosaic::kDynamicBound || bound > kMostSteps) return;
    steps *= bound;
    if (steps > kMostSteps) return;
  }
  static const std::vector<std::byte> zeros(8 * kMostElements);
  std::vector<mosaic::ArrayView> operands;
  const auto add = [&](const mosaic::Type& type) {
    const int64_t bytes = mosaic::BytesOf(mosaic::ArrayType{type.element, type.dims});
    operands.push_back({type.element, type.dims, std::span(zeros).first(static_cast<size_t>(bytes))});
  };
  for (const mosaic::Type& type : signature.scalars) add(type);
  for (const mosaic::WindowInfo& window : signature.windows) add(window.memref);
  std::vector<mosaic::ArrayType> results;
  if (!signature.windows.empty()) {
    results.push_back({operands.back().element, operands.back().dims});
    operands.pop_back();
  }
  const auto done = mosaic::Interpret(module, operands, results, {.most_rounds = 64});
  Require(done || !done.error().message.empty() || !done.error().violations.empty(), "a refusal says why");
}

}  // namespace

bool FuzzMosaic(const uint8_t* data, size_t size) {
  const auto module = mosaic::Parse(AsText(data, size));
  if (!module) {
    Require(!module.error().message.empty() && !module.error().where.empty(), "a refusal says why and where");
    return false;
  }
  const std::string text = mosaic::Print(*module);
  const auto again = mosaic::Parse(text);
  Require(again.has_value(), "what was printed reads");
  Require(mosaic::Print(*again) == text, "and prints as it was");
  const Status verified = mosaic::VerifyModule(*module);
  if (!verified) {
    Require(!verified.error().message.empty(), "a refusal says why");
    return true;
  }
  const auto signature = mosaic::ReadSignature(*module);
  Require(signature.has_value(), "what is verified has a signature");
  Require(mosaic::MeasureMemory(*module).has_value(), "and a size");
  if (IsSmall(*module)) Run(*module, *signature);
  return true;
}

}  // namespace tessera
