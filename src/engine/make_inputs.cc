// Inputs from a seed. Every operation is exact (integers and a power of two), and element values depend on the seed,
// the tensor and the element's (batch, head, token, dim) place only, so machines and layouts agree to the last bit.
#include <cstdint>

#include "base/bits_from_seed.h"
#include "engine/tensors.h"
#include "tessera/run.h"

namespace tessera {
namespace {

// Close to a Gaussian with standard deviation 1.15, never beyond 4.
double Bell(uint64_t bits) { return static_cast<double>(BellSum(bits)) / 32768.0; }

// The index of an element in [B,H,T,D] order, given its index in the tensor's own order.
int64_t LogicalIndex(const TensorSpec& spec, Layout layout, int64_t i) {
  if (layout == Layout::kBhtd || spec.shape.size() != 4) return i;
  const int64_t tokens = spec.shape[1];
  const int64_t heads = spec.shape[2];
  const int64_t dim = spec.shape[3];
  const int64_t d = i % dim;
  const int64_t head = i / dim % heads;
  const int64_t token = i / dim / heads % tokens;
  const int64_t batch = i / dim / heads / tokens;
  return ((batch * heads + head) * tokens + token) * dim + d;
}

}  // namespace

TensorMap MakeInputs(const Contract& contract, uint64_t seed, bool backward, Layout layout) {
  TensorMap inputs;
  if (!Validate(contract).empty()) return inputs;
  for (const TensorSpec& spec : InputSpecs(contract, backward, layout)) {
    // The name chooses the stream, so that asking for a backward leaves the other tensors as they were.
    uint64_t stream = Mix(seed);
    for (char c : spec.name) stream = Mix(stream ^ static_cast<unsigned char>(c));
    Tensor tensor = Tensor::Zeros(spec.type, spec.shape);
    for (int64_t i = 0, n = tensor.NumElements(); i < n; ++i) {
      const uint64_t counter = static_cast<uint64_t>(LogicalIndex(spec, layout, i));
      tensor.Set(i, Bell(Mix(stream + counter * 0x9e3779b97f4a7c15u)));
    }
    inputs.emplace(spec.name, std::move(tensor));
  }
  return inputs;
}

}  // namespace tessera
