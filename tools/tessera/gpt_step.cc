#include "gpt_step.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>

namespace tessera::program {
namespace {

constexpr int64_t kTokens = 24;
constexpr int64_t kHeads = 2;
constexpr int64_t kDim = 8;
constexpr int64_t kWidth = kHeads * kDim;
constexpr double kRate = 0.3;

constexpr const char* kContract =
    "version = 1\n[shape]\nq_len = 24\nnum_q_heads = 2\ndim_qk = 8\ndtype = \"f32\"\n[mask]\nexpr = \"causal\"\n";

// Row-major; rows of tokens or of weights, kWidth wide.
struct Matrix {
  int64_t rows = 0;
  std::vector<double> cells;
  explicit Matrix(int64_t rows_in) : rows(rows_in), cells(static_cast<size_t>(rows_in * kWidth)) {}
  double& At(int64_t row, int64_t column) { return cells[static_cast<size_t>(row * kWidth + column)]; }
  double At(int64_t row, int64_t column) const { return cells[static_cast<size_t>(row * kWidth + column)]; }
};

enum class Side { kPlain, kTransposed };

// a * b; b is square.
Matrix Times(const Matrix& a, const Matrix& b, Side of_b = Side::kPlain) {
  Matrix out(a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      for (int64_t n = 0; n < kWidth; ++n)
        out.At(i, j) += a.At(i, n) * (of_b == Side::kPlain ? b.At(n, j) : b.At(j, n));
    }
  }
  return out;
}

void Add(Matrix& to, const Matrix& more, double factor = 1.0) {
  for (size_t i = 0; i < to.cells.size(); ++i) to.cells[i] += factor * more.cells[i];
}

// a^T * b: the gradient of weights.
Matrix Outer(const Matrix& a, const Matrix& b) {
  Matrix out(kWidth);
  for (int64_t t = 0; t < a.rows; ++t) {
    for (int64_t i = 0; i < kWidth; ++i) {
      for (int64_t j = 0; j < kWidth; ++j) out.At(i, j) += a.At(t, i) * b.At(t, j);
    }
  }
  return out;
}

// [tokens, heads * dim] <-> [1, heads, tokens, dim].
Tensor ToTensor(const Matrix& matrix) {
  Tensor tensor = Tensor::Zeros(ElementType::kF32, {1, kHeads, kTokens, kDim});
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kWidth; ++c) tensor.Set((c / kDim * kTokens + t) * kDim + c % kDim, matrix.At(t, c));
  }
  return tensor;
}
Matrix ToMatrix(const Tensor& tensor) {
  Matrix matrix(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t c = 0; c < kWidth; ++c) matrix.At(t, c) = tensor.At((c / kDim * kTokens + t) * kDim + c % kDim);
  }
  return matrix;
}

struct Layer {
  std::array<Matrix, 4> weights{Matrix(kWidth), Matrix(kWidth), Matrix(kWidth), Matrix(kWidth)};  // q, k, v, out
};

// x + attention(x Wq, x Wk, x Wv) Wo. With `dout` also the gradients: that of x comes back, those of weights in
// `grads`.
struct LayerRun {
  Matrix out{kTokens};
  Matrix dx{kTokens};
};
Result<LayerRun> RunLayer(const Contract& contract, const AttentionCall& attention, const Layer& layer, const Matrix& x,
                          const Matrix& dout, Layer& grads) {
  const auto& [wq, wk, wv, wo] = layer.weights;
  TensorMap inputs{{"q", ToTensor(Times(x, wq))},
                   {"k", ToTensor(Times(x, wk))},
                   {"v", ToTensor(Times(x, wv))},
                   {"do", ToTensor(Times(dout, wo, Side::kTransposed))}};
  Result<TensorMap> outputs = attention(contract, inputs);
  if (!outputs) return tl::unexpected(std::move(outputs.error()));
  LayerRun run;
  const Matrix o = ToMatrix(outputs->at("o"));
  run.out = x;
  Add(run.out, Times(o, wo));
  run.dx = dout;
  const char* names[] = {"dq", "dk", "dv"};
  for (size_t i = 0; i < 3; ++i) {
    const Matrix gradient = ToMatrix(outputs->at(names[i]));
    grads.weights[i] = Outer(x, gradient);
    Add(run.dx, Times(gradient, layer.weights[i], Side::kTransposed));
  }
  grads.weights[3] = Outer(o, dout);
  return run;
}

}  // namespace

Result<std::vector<double>> TrainSmallGpt(const AttentionCall& attention, int steps) {
  const Result<Contract> contract = ParseContract(kContract);
  if (!contract) return tl::unexpected(contract.error());
  std::mt19937 rng(1);
  std::normal_distribution<double> normal(0.0, 1.0);
  Matrix tokens(kTokens);
  for (double& cell : tokens.cells) cell = normal(rng);
  std::array<Layer, 2> layers;
  for (Layer& layer : layers) {
    for (Matrix& weights : layer.weights) {
      for (double& cell : weights.cells) cell = 0.2 * normal(rng);
    }
  }
  std::vector<double> losses;
  for (int step = 0; step <= steps; ++step) {
    std::array<Layer, 2> grads;
    const Matrix none(kTokens);
    Result<LayerRun> first = RunLayer(*contract, attention, layers[0], tokens, none, grads[0]);
    if (!first) return tl::unexpected(std::move(first.error()));
    Result<LayerRun> second = RunLayer(*contract, attention, layers[1], first->out, none, grads[1]);
    if (!second) return tl::unexpected(std::move(second.error()));
    // Half the mean square of what is missing to the next token.
    Matrix dout(kTokens);
    double loss = 0;
    for (int64_t t = 0; t + 1 < kTokens; ++t) {
      for (int64_t c = 0; c < kWidth; ++c) {
        const double missing = second->out.At(t, c) - tokens.At(t + 1, c);
        loss += 0.5 * missing * missing / static_cast<double>(kTokens - 1);
        dout.At(t, c) = missing / static_cast<double>(kTokens - 1);
      }
    }
    losses.push_back(loss);
    if (step == steps) break;
    second = RunLayer(*contract, attention, layers[1], first->out, dout, grads[1]);
    if (!second) return tl::unexpected(std::move(second.error()));
    first = RunLayer(*contract, attention, layers[0], tokens, second->dx, grads[0]);
    if (!first) return tl::unexpected(std::move(first.error()));
    for (size_t i = 0; i < layers.size(); ++i) {
      for (size_t w = 0; w < layers[i].weights.size(); ++w) Add(layers[i].weights[w], grads[i].weights[w], -kRate);
    }
  }
  return losses;
}

}  // namespace tessera::program
