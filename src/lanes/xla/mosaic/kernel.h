// A whole kernel: the grid, scalars that are in scalar memory before the first step, windows that move over the
// operands, scratch, and a body. What the pieces mean is in docs/tpu.md, "The kernel language".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lanes/xla/mosaic/builder.h"
#include "tessera/error.h"

namespace tessera::mosaic {

// Which steps of a grid axis may be split over cores.
enum class Semantics : uint8_t { kParallel, kArbitrary };

struct Memory {
  std::string name;
  Type type;  // a memref
};

// What a step sees of one operand or result: a block of the array, in vector memory (or scalar memory: small arrays
// that are read one element at a time). The index map gives the block's number along each axis from the grid indices
// and the scalars, as i32.
struct Window {
  using IndexMap = std::function<Values(Builder&, const Values& grid, const Values& scalars)>;
  std::string name;
  Element element = Element::kF32;
  std::vector<int64_t> bounds = {};  // of the block
  IndexMap index_map = {};           // none: the whole array stays where it is, and only copies touch it
  Space space = Space::kVmem;
  bool is_synchronous = false;  // not double-buffered: for a block that never changes
};

struct KernelSpec {
  std::string name;
  std::vector<int64_t> grid = {};         // the last axis moves fastest; kDynamicBound is legal
  std::vector<Semantics> semantics = {};  // of each axis
  std::vector<Memory> scalars = {};       // in scalar memory
  std::vector<Window> inputs = {};
  std::vector<Window> outputs = {};
  std::vector<Memory> scratch = {};
  int64_t version = 13;
};

// What the body is given, by the names of the specification.
struct KernelArguments {
  Values grid = {};
  std::vector<std::pair<std::string, Value>> memrefs;
  // A value of a name that is not there makes every operation on it a mistake.
  Value operator[](std::string_view name) const;
};

// TSR-M002 with the first mistake, of the builder or of the verifier.
Result<Module> BuildKernel(const KernelSpec& spec, const std::function<void(Builder&, const KernelArguments&)>& body);

}  // namespace tessera::mosaic
