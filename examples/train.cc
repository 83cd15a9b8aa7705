// A training loop: bf16, four query heads for each key head, new documents every step. The engine, the attention and
// all memory are made once; a step makes one plan and binds it, and its forward and backward use the same one.
//
// What is trained is v alone, toward an output that it can reach: the loss falls, whatever the documents are.
#include <tessera/tessera.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace {

constexpr int64_t kTokens = 512, kHeads = 8, kKvHeads = 2, kDim = 32;
constexpr int kSteps = 8;
constexpr float kRate = 3000.0f;

// A tensor of bf16, with f32 beside it where numbers are kept.
struct Values {
  explicit Values(int64_t num_heads) : heads(num_heads), bits(static_cast<size_t>(heads * kTokens * kDim)) {}
  tessera::TensorRef view() {
    return tessera::DenseView(bits.data(), tessera::ElementType::kBf16, {1, heads, kTokens, kDim});
  }
  float at(size_t i) const { return tessera::Bf16ToF32(bits[i]); }
  void set(size_t i, float value) { bits[i] = tessera::F32ToBf16(value); }
  int64_t heads;
  std::vector<uint16_t> bits;
};

// The one way to get an error: a Result has a value, or an Error that says what, where and what was expected.
template <class T>
T ValueOf(tessera::Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "%s\n", tessera::ToText(result.error()).c_str());
  std::exit(1);
}
void Check(const tessera::Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", tessera::ToText(status.error()).c_str());
  std::exit(1);
}

// The documents of a step: lengths from 16 to 128, as many as fit, and padding after them.
tessera::Batch NextDocuments(std::mt19937& random) {
  std::vector<int32_t> lengths;
  for (int64_t used = 0;;) {
    const auto length = static_cast<int32_t>(16 + random() % 113);
    if (used + length > kTokens) break;
    lengths.push_back(length);
    used += length;
  }
  tessera::Batch batch;
  batch.doc_lengths = {std::move(lengths)};
  return batch;
}

}  // namespace

int main() {
  const tessera::Contract contract = ValueOf(tessera::MakeContract({.q_len = kTokens,
                                                                    .num_q_heads = kHeads,
                                                                    .num_kv_heads = kKvHeads,
                                                                    .dim_qk = kDim,
                                                                    .dtype = tessera::DType::kBf16,
                                                                    .mask = "causal and documents"}));
  const tessera::Engine engine;
  const tessera::Attention attention =
      ValueOf(engine.Prepare(contract, ValueOf(tessera::FindTarget("cpu")), {.backward = true}));

  std::mt19937 random(1);
  Values q(kHeads), k(kKvHeads), v(kKvHeads), o(kHeads), dout(kHeads), dq(kHeads), dk(kKvHeads), dv(kKvHeads);
  std::vector<float> lse(kHeads * kTokens), weights(v.bits.size());
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < q.bits.size(); ++i) q.set(i, normal(random));
  for (size_t i = 0; i < k.bits.size(); ++i) k.set(i, normal(random));
  for (float& weight : weights) weight = normal(random);

  const tessera::RunTensors tensors{.q = q.view(),
                                    .k = k.view(),
                                    .v = v.view(),
                                    .dout = dout.view(),
                                    .o = o.view(),
                                    .lse = lse,
                                    .dq = dq.view(),
                                    .dk = dk.view(),
                                    .dv = dv.view()};
  const auto count = static_cast<float>(o.bits.size());
  tessera::Receipt receipt;
  float first_loss = 0, loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < weights.size(); ++i) v.set(i, weights[i]);
    const tessera::Bound bound = ValueOf(attention.Bind(ValueOf(attention.Plan(NextDocuments(random))).plan));
    Check(bound.Forward(tensors));
    loss = 0;
    for (size_t i = 0; i < o.bits.size(); ++i) {  // every output that sees a key is to be 1
      const bool is_padding = std::isinf(lse[i / kDim]);
      const float error = is_padding ? 0.0f : o.at(i) - 1.0f;
      loss += error * error / count;
      dout.set(i, 2 * error / count);
    }
    Check(bound.Backward(tensors, {.receipt = &receipt}));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= kRate * dv.at(i);
    std::printf("step %d: loss %.4f\n", step, static_cast<double>(loss));
    if (step == 0) first_loss = loss;
  }
  std::printf("%s\n", tessera::ToLine(receipt).c_str());
  return loss < 0.5f * first_loss ? 0 : 1;
}
