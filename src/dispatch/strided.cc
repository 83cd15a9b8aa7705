// Checks and digests of tensors in memory of the caller's. Nothing is read or written through a pointer here before
// every tensor has passed: what cannot be checked (that the memory is there) is the caller's word.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "base/hash.h"
#include "dispatch/tensors.h"

namespace tessera {
namespace {

using Axes = std::array<int64_t, 4>;  // [batch, heads, tokens, dim]

// No tensor spans more: offsets in bytes stay far inside 64 bits.
constexpr int64_t kMaxExtent = int64_t{1} << 56;

// One tensor that a run uses, in either form.
struct Use {
  const TensorRef* ref = nullptr;
  Axes axes{};
  std::span<const float> floats;
  bool is_output = false;
};

bool IsFloat(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBf16 || type == ElementType::kF16;
}

const void* AddressOf(const Use& use) {
  return use.ref != nullptr ? static_cast<const void*>(use.ref->data) : use.floats.data();
}

// Whether two elements share an address. Sufficient, not necessary: axes must nest, each stride stepping over all
// that lies inside it, which every layout that a program really uses does.
bool MayOverlap(const TensorRef& ref, const Axes& axes) {
  std::array<std::pair<int64_t, int64_t>, 3> steps = {
      {{ref.batch_stride, axes[0]}, {ref.head_stride, axes[1]}, {ref.token_stride, axes[2]}}};
  std::sort(steps.begin(), steps.end());
  int64_t extent = axes[3];
  for (const auto& [stride, count] : steps) {
    if (count == 1) continue;
    if (stride < extent) return true;
    extent += stride * (count - 1);
  }
  return false;
}

// The elements from the first to the last, or nothing when that is beyond the limit.
bool ExtentFits(const TensorRef& ref, const Axes& axes) {
  int64_t extent = axes[3];
  for (const auto& [stride, count] : {std::pair{ref.batch_stride, axes[0]}, std::pair{ref.head_stride, axes[1]},
                                      std::pair{ref.token_stride, axes[2]}}) {
    int64_t step = 0;
    if (__builtin_mul_overflow(stride, count - 1, &step) || __builtin_add_overflow(extent, step, &extent)) return false;
  }
  return extent <= kMaxExtent;
}

class Checker {
 public:
  Checker(const Contract& contract, const RunTensors& tensors, const RunOptions& options)
      : contract_(contract), t_(tensors), options_(options) {}

  // Finds what the run uses; violations when that is not what it needs.
  std::map<std::string, Use> Collect() {
    const Shape& s = contract_.shape;
    const Axes q_axes = {s.batch, s.num_q_heads, s.q_len, s.dim_qk};
    const Axes k_axes = {s.batch, s.num_kv_heads, s.kv_len, s.dim_qk};
    const Axes v_axes = {s.batch, s.num_kv_heads, s.kv_len, s.dim_v};
    const Axes o_axes = {s.batch, s.num_q_heads, s.q_len, s.dim_v};
    const int64_t num_rows = s.batch * s.num_q_heads * s.q_len;
    const bool has_forward = options_.forward;
    const bool has_backward = options_.backward;
    Input("q", t_.q, q_axes);
    Input("k", t_.k, k_axes);
    Input("v", t_.v, v_axes);
    if (contract_.score.sink_logits) {
      Floats("sink_logits", t_.sink_logits, s.num_q_heads, {.required = true});
    } else if (!t_.sink_logits.empty()) {
      Add("sink_logits", "not expected: the contract's score.sink_logits is false");
    }
    if (has_forward) {
      Strided("o", t_.o, o_axes, true);
      Floats("lse", t_.lse, num_rows, {.required = has_backward, .is_output = true});
      Floats("max", t_.row_max, num_rows, {.is_output = true});
    } else {
      if (t_.delta.empty()) Strided("o", t_.o, o_axes, false);
      Floats("delta", t_.delta, num_rows, {});
      Floats("lse", t_.lse, num_rows, {.required = true});
    }
    if (has_backward) {
      Input("do", t_.dout, o_axes);
      Strided("dq", t_.dq, q_axes, true);
      Strided("dk", t_.dk, k_axes, true);
      Strided("dv", t_.dv, v_axes, true);
      if (contract_.score.sink_logits) {
        Floats("dsink_logits", t_.dsink_logits, s.num_q_heads, {.is_output = true});
      } else if (!t_.dsink_logits.empty()) {
        Add("dsink_logits", "not expected: the contract's score.sink_logits is false");
      }
    }
    return std::move(uses_);
  }

  std::vector<Violation> Check() {
    const std::map<std::string, Use> uses = Collect();
    for (const auto& [name, use] : uses) {
      if (!use.is_output) continue;
      for (const auto& [other, use_of_other] : uses) {
        const bool is_said = use_of_other.is_output && other < name;  // once per pair
        if (other == name || is_said || AddressOf(use) != AddressOf(use_of_other)) continue;
        Add(name, fmt::format("memory of its own expected, but {} starts at the same address", other));
      }
    }
    return std::move(violations_);
  }

 private:
  struct FloatsNeed {
    bool required = false;
    bool is_output = false;
  };

  void Add(std::string name, std::string expected) { violations_.push_back({std::move(name), std::move(expected)}); }

  void Input(const char* name, const TensorRef& ref, const Axes& axes) {
    const ElementType want = ToElementType(contract_.shape.dtype);
    if (ref.data != nullptr && ref.type != want) {
      Add(name, fmt::format("{} expected, the contract's dtype, got {}", ToText(want), ToText(ref.type)));
      return;
    }
    Strided(name, ref, axes, false);
  }

  void Strided(const char* name, const TensorRef& ref, const Axes& axes, bool is_output) {
    if (ref.data == nullptr) {
      Add(name, fmt::format("[{}] expected, but there is no such tensor", fmt::join(axes, ", ")));
    } else if (!IsFloat(ref.type)) {
      Add(name, fmt::format("F32, BF16 or F16 expected, got {}", ToText(ref.type)));
    } else if (reinterpret_cast<uintptr_t>(ref.data) % static_cast<uintptr_t>(BytesOf(ref.type)) != 0) {
      Add(name, fmt::format("an address that is a multiple of {} expected", BytesOf(ref.type)));
    } else if (ref.batch_stride < 0 || ref.head_stride < 0 || ref.token_stride < 0) {
      Add(name, fmt::format("strides of 0 or more expected, got {}", StridesText(ref)));
    } else if (!ExtentFits(ref, axes)) {
      Add(name, fmt::format("strides {} of a [{}] reach beyond any memory", StridesText(ref), fmt::join(axes, ", ")));
    } else if (is_output && MayOverlap(ref, axes)) {
      Add(name, fmt::format("strides {} let rows of a [{}] overlap", StridesText(ref), fmt::join(axes, ", ")));
    } else {
      uses_[name] = {.ref = &ref, .axes = axes, .floats = {}, .is_output = is_output};
    }
  }

  void Floats(const char* name, std::span<const float> floats, int64_t want, const FloatsNeed& need) {
    if (floats.empty()) {
      if (need.required) Add(name, fmt::format("{} F32 values expected, but there is no such tensor", want));
    } else if (static_cast<int64_t>(floats.size()) != want) {
      Add(name, fmt::format("{} F32 values expected, got {}", want, floats.size()));
    } else if (reinterpret_cast<uintptr_t>(floats.data()) % alignof(float) != 0) {
      Add(name, fmt::format("an address that is a multiple of {} expected", alignof(float)));
    } else {
      uses_[name] = {.ref = nullptr, .axes = {}, .floats = floats, .is_output = need.is_output};
    }
  }

  static std::string StridesText(const TensorRef& ref) {
    return fmt::format("{}, {}, {}", ref.batch_stride, ref.head_stride, ref.token_stride);
  }

  const Contract& contract_;
  const RunTensors& t_;
  const RunOptions& options_;
  std::map<std::string, Use> uses_;
  std::vector<Violation> violations_;
};

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

void HashStrided(Hasher& hasher, const TensorRef& ref, const Axes& axes) {
  HashShape(hasher, ref.type, axes);
  const int64_t size = BytesOf(ref.type);
  for (int64_t b = 0; b < axes[0]; ++b) {
    for (int64_t h = 0; h < axes[1]; ++h) {
      for (int64_t t = 0; t < axes[2]; ++t) {
        const int64_t at = b * ref.batch_stride + h * ref.head_stride + t * ref.token_stride;
        hasher.Bytes(ref.data + at * size, static_cast<size_t>(axes[3] * size));
      }
    }
  }
}

std::string DigestOf(const Contract& contract, const RunTensors& tensors, const RunOptions& options, bool outputs) {
  std::map<std::string, Use> uses = Checker(contract, tensors, options).Collect();
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

std::vector<Violation> CheckTensors(const Contract& contract, const RunTensors& tensors, const RunOptions& options) {
  return Checker(contract, tensors, options).Check();
}

std::string DigestInputs(const Contract& contract, const RunTensors& tensors, const RunOptions& options) {
  return DigestOf(contract, tensors, options, false);
}

std::string DigestOutputs(const Contract& contract, const RunTensors& tensors, const RunOptions& options) {
  return DigestOf(contract, tensors, options, true);
}

}  // namespace tessera
