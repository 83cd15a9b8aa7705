// The same from C++: plans are values, errors are values, and tensors stay where they are.
#include <tessera/tessera.h>

#include <cstdio>
#include <vector>

int main() {
  const auto contract = tessera::ParseContract(R"toml(
    version = 1
    [shape]
    q_len = 512
    num_q_heads = 2
    num_kv_heads = 2
    dim_qk = 16
    dtype = "f32"
    [mask]
    expr = "causal and window(127, 0)"
  )toml");
  const auto target = tessera::FindTarget("cpu");
  if (!contract || !target) {
    std::fprintf(stderr, "%s\n", tessera::ToText(contract ? target.error() : contract.error()).c_str());
    return 1;
  }

  // [B,H,T,D], dense.
  const auto view = [](std::vector<float>& data) {
    return tessera::TensorRef{.type = tessera::ElementType::kF32,
                              .data = reinterpret_cast<std::byte*>(data.data()),
                              .batch_stride = 2 * 512 * 16,
                              .head_stride = 512 * 16,
                              .token_stride = 16};
  };
  std::vector<float> q(2 * 512 * 16, 0.5f), k = q, v(q.size(), 1.0f), o(q.size());
  tessera::RunTensors tensors;
  tensors.q = view(q);
  tensors.k = view(k);
  tensors.v = view(v);
  tensors.o = view(o);
  const tessera::RunOutcome outcome = tessera::RunStrided(*contract, {}, tensors, *target);
  std::printf("tessera %s: %s\n", tessera::kVersion, tessera::ToLine(outcome.receipt).c_str());
  if (outcome.error) std::fprintf(stderr, "%s\n", tessera::ToText(*outcome.error).c_str());
  return !outcome.error && o.back() > 0.999f && o.back() < 1.001f ? 0 : 1;
}
