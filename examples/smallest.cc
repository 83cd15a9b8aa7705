// The smallest program: causal attention of 8 heads on memory of our own. README.md shows the lines that matter.
#include <tessera/tessera.h>

#include <cstdio>
int main() {
  static float q[8][1024][64], k[8][1024][64], v[8][1024][64], o[8][1024][64];
  const auto view = [](auto& x) { return tessera::DenseView(x[0][0], {1, 8, 1024, 64}); };
  const auto contract = tessera::MakeContract({.q_len = 1024, .num_q_heads = 8, .dim_qk = 64, .mask = "causal"});
  const auto attention = tessera::Engine().Prepare(contract.value(), tessera::FindTarget("cpu").value()).value();
  const auto bound = attention.Bind(attention.Plan({}).value().plan).value();
  const auto done = bound.Forward({.q = view(q), .k = view(k), .v = view(v), .o = view(o)});
  std::puts(done ? "done" : tessera::ToText(done.error()).c_str());
}
