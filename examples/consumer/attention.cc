// The same from C++: an engine, values that share what is behind them, errors as values, and tensors that stay where
// they are.
#include <tessera/tessera.h>

#include <cstdio>
#include <vector>

namespace {

int Attend() {
  const auto fail = [](const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", tessera::ToText(error).c_str());
    return 1;
  };
  const auto contract =
      tessera::MakeContract({.q_len = 512, .num_q_heads = 2, .dim_qk = 16, .mask = "causal and window(127, 0)"});
  if (!contract) return fail(contract.error());
  const auto target = tessera::FindTarget("cpu");
  if (!target) return fail(target.error());
  const tessera::Engine engine;
  const auto attention = engine.Prepare(*contract, *target);
  if (!attention) return fail(attention.error());
  auto made = attention->Plan({});
  if (!made) return fail(made.error());
  const auto bound = attention->Bind(std::move(made->plan));
  if (!bound) return fail(bound.error());

  std::vector<float> q(2 * 512 * 16, 0.5f), k = q, v(q.size(), 1.0f), o(q.size());
  const auto view = [](std::vector<float>& data) { return tessera::DenseView(data.data(), {1, 2, 512, 16}); };
  tessera::RunTensors tensors;
  tensors.q = view(q);
  tensors.k = view(k);
  tensors.v = view(v);
  tensors.o = view(o);
  tessera::Receipt receipt;
  tessera::CallOptions call;
  call.receipt = &receipt;
  if (const auto done = bound->Forward(tensors, call); !done) return fail(done.error());
  std::printf("tessera %s: %s\n", tessera::kVersion, tessera::ToLine(receipt).c_str());
  return o.back() > 0.999f && o.back() < 1.001f ? 0 : 1;
}

}  // namespace

int main() { return Attend(); }
