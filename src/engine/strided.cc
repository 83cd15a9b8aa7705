// Checks and digests of tensors in memory of the caller's. Nothing is read or written through a pointer here before
// every tensor has passed: what cannot be checked (that the memory is there) is the caller's word.
#include <cstdint>
#include <map>

#include "base/hash.h"
#include "base/tensor_row.h"
#include "engine/tensors.h"
#include "lanes/check_args.h"

namespace tessera {
namespace {

// Finds what the run uses; complaints where that is not what it needs.
void Collect(const RunTensors& t, const AttentionOptions& options, TensorChecker& check) {
  check.Input("q", t.q, check.q_axes);
  check.Input("k", t.k, check.k_axes);
  check.Input("v", t.v, check.v_axes);
  check.Sinks("sink_logits", t.sink_logits, {.required = true});
  if (options.forward) {
    check.Strided("o", t.o, check.o_axes, true);
    check.RowStat("lse", t.lse, {.required = options.backward, .is_output = true});
    check.RowStat("max", t.row_max, {.is_output = true});
  } else {
    if (t.delta.empty()) check.Strided("o", t.o, check.o_axes, false);
    check.RowStat("delta", t.delta, {});
    check.RowStat("lse", t.lse, {.required = true});
  }
  if (!options.backward) return;
  check.Input("do", t.dout, check.o_axes);
  check.Strided("dq", t.dq, check.q_axes, true);
  check.Strided("dk", t.dk, check.k_axes, true);
  check.Strided("dv", t.dv, check.v_axes, true);
  check.Sinks("dsink_logits", t.dsink_logits, {.is_output = true});
}

void HashShape(Hasher& hasher, ElementType type, std::span<const int64_t> shape) {
  hasher.Text(ToText(type));
  hasher.Int(static_cast<int64_t>(shape.size()));
  int64_t bytes = BytesOf(type);
  for (const int64_t dim : shape) {
    hasher.Int(dim);
    bytes *= dim;
  }
  hasher.Int(bytes);
}

void HashStrided(Hasher& hasher, const TensorRef& ref, const TensorAxes& axes) {
  HashShape(hasher, ref.type, axes);
  const int64_t size = BytesOf(ref.type);
  for (int64_t b = 0; b < axes[0]; ++b) {
    for (int64_t h = 0; h < axes[1]; ++h) {
      for (int64_t t = 0; t < axes[2]; ++t) {
        hasher.Bytes(RowAt(ref, b, h, t), static_cast<size_t>(axes[3] * size));
      }
    }
  }
}

std::string DigestOf(const Contract& contract, const RunTensors& tensors, const AttentionOptions& options,
                     bool outputs) {
  TensorChecker check(contract, options.memory);
  Collect(tensors, options, check);
  std::map<std::string, UsedTensor> uses = check.uses();
  std::erase_if(uses, [&](const auto& entry) { return entry.second.is_output != outputs; });
  const Shape& s = contract.shape;
  Hasher hasher;
  hasher.Int(static_cast<int64_t>(uses.size()));
  for (const auto& [name, use] : uses) {
    hasher.Text(name);
    if (use.ref != nullptr) {
      HashStrided(hasher, *use.ref, use.axes);
      continue;
    }
    const bool is_per_head = name.ends_with("sink_logits");
    const std::vector<int64_t> shape =
        is_per_head ? std::vector{s.num_q_heads} : std::vector{s.batch, s.num_q_heads, s.q_len};
    HashShape(hasher, ElementType::kF32, shape);
    hasher.Bytes(use.floats.data(), use.floats.size_bytes());
  }
  return Hex(hasher.Finish());
}

}  // namespace

std::vector<Violation> CheckTensors(const Contract& contract, const RunTensors& tensors,
                                    const AttentionOptions& options) {
  TensorChecker check(contract, options.memory);
  Collect(tensors, options, check);
  return check.Finish();
}

std::string DigestInputs(const Contract& contract, const RunTensors& tensors, const AttentionOptions& options) {
  return DigestOf(contract, tensors, options, false);
}

std::string DigestOutputs(const Contract& contract, const RunTensors& tensors, const AttentionOptions& options) {
  return DigestOf(contract, tensors, options, true);
}

}  // namespace tessera
