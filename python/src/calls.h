// Calls by number: compiled programs of frameworks hold numbers and arrays, not Python objects. An attention is
// registered once and has a number from then on; a plan travels as an operand, an array of bytes that has all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "native.h"

namespace tessera_python {

// An operand begins with a head of this many bytes: magic, the length of the plan's bytes, its fingerprint; then come
// the plan's own bytes, then zeros up to a length that plans share, so that nothing is compiled for a length.
inline constexpr size_t kOperandHead = 64;
inline constexpr char kOperandMagic[] = "TSROPND1";

enum class Pass { kForward, kBackward };

// The sizes of a registered attention's contract, and the GPU its tensors are on; null where there is none of that number.
struct NumberedShape {
  tessera_shape shape;
  int64_t ordinal;
};
const NumberedShape* ShapeOfNumber(int64_t number);

// What TesseraError has, where there is no Python to make one; good where the code is empty.
struct CallError {
  std::string code = {};
  std::string text = {};
  std::string where = {};
  std::vector<std::pair<std::string, std::string>> violations = {};
  bool ok() const { return code.empty(); }
};

// Runs a pass of a registered attention on the plan in `operand`. The first call with a plan that this process has not
// seen lately checks its bytes and binds it; others find it bound. Gives what is wrong, if anything is. Needs no
// lock of Python's, and touches nothing of it.
CallError CallByNumber(int64_t number, std::span<const std::byte> operand, Pass pass, const tessera_args& args,
                       void* stream);

// The same from Python, on the host's memory: without its lock meanwhile, and what is wrong is raised.
void CallOnHost(int64_t number, std::span<const std::byte> operand, Pass pass, const tessera_args& args);

// The same on a GPU, where the operand is an image of the plan (tessera_attention_image) in device memory, which the
// kernels read there: the host never looks at it, so nothing is copied or waited for. The launches are those of the first
// plan that was remembered, because they depend on the class alone; it is bound at the first call.
CallError CallWithImage(int64_t number, std::span<const std::byte> image, Pass pass, const tessera_args& args,
                        void* stream);

}  // namespace tessera_python
