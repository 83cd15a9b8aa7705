#include "cpu/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tessera/mask_term.h"

namespace tessera::bench {
namespace {

constexpr int64_t kRandomTile = 256;
constexpr const char* kRandomTilesTerm = "bench_random_tiles";

// bench_random_tiles(percent, seed): so many of all tiles of 256 x 256, each whole, wherever chance put them.
std::vector<MaskRun> RandomTiles(const MaskTermInput& input) {
  const int64_t rows = (input.q_len + kRandomTile - 1) / kRandomTile;
  const int64_t columns = (input.kv_len + kRandomTile - 1) / kRandomTile;
  std::vector<int64_t> tiles(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < tiles.size(); ++i) tiles[i] = static_cast<int64_t>(i);
  std::mt19937_64 rng(static_cast<uint64_t>(input.parameters[1]));
  for (size_t i = tiles.size(); i > 1; --i) std::swap(tiles[i - 1], tiles[rng() % i]);
  const int64_t kept = std::max<int64_t>(1, rows * columns * input.parameters[0] / 100);
  tiles.resize(static_cast<size_t>(kept));
  std::sort(tiles.begin(), tiles.end());
  std::vector<MaskRun> runs;
  for (const int64_t tile : tiles) {
    const int64_t q = tile / columns * kRandomTile;
    const int64_t kv = tile % columns * kRandomTile;
    runs.push_back({.q_begin = q,
                    .q_end = std::min(q + kRandomTile, input.q_len),
                    .kv_begin = kv,
                    .kv_end = std::min(kv + kRandomTile, input.kv_len)});
  }
  return runs;
}

Status RegisterRandomTiles(MaskTerms& terms) {
  return terms.Register({.name = kRandomTilesTerm, .min_parameters = 2, .max_parameters = 2, .runs = RandomTiles});
}

std::string MaskText(const Case& shape, uint64_t seed) {
  switch (shape.mask) {
    case MaskKind::kCausal:
      break;
    case MaskKind::kWindow:
      return fmt::format("causal and window({}, 0)", shape.window());
    case MaskKind::kDocuments:
    case MaskKind::kRandomDocuments:
      return "causal and documents";
    case MaskKind::kRandomTiles:
      return fmt::format("{}({}, {})", kRandomTilesTerm, shape.percent, seed % 1000000);
  }
  return "causal";
}

std::vector<int64_t> DocumentLengths(const Case& shape, uint64_t seed) {
  std::vector<int64_t> lengths;
  if (shape.mask != MaskKind::kDocuments && shape.mask != MaskKind::kRandomDocuments) return lengths;
  const int64_t documents = std::min(shape.documents, shape.tokens);
  std::vector<int64_t> cuts{0, shape.tokens};
  std::mt19937_64 rng(seed);
  for (int64_t d = 1; d < documents; ++d) {
    int64_t cut = d * shape.tokens / documents;
    if (shape.mask == MaskKind::kRandomDocuments) {
      do {
        cut = static_cast<int64_t>(rng() % static_cast<uint64_t>(shape.tokens));
      } while (std::find(cuts.begin(), cuts.end(), cut) != cuts.end());
    }
    cuts.push_back(cut);
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) lengths.push_back(cuts[i + 1] - cuts[i]);
  return lengths;
}

Batch MakeBatch(const Problem& problem) {
  Batch batch;
  if (problem.document_lengths.empty()) return batch;
  IdRows ids{1, problem.shape.tokens, {}};
  for (size_t d = 0; d < problem.document_lengths.size(); ++d) {
    ids.values.insert(ids.values.end(), static_cast<size_t>(problem.document_lengths[d]), static_cast<int32_t>(d));
  }
  batch.doc_ids = std::move(ids);
  return batch;
}

// Exact, from the plan the lane walks: whole areas for full tiles, pair by pair in the others.
int64_t CountPairs(const PlanView& plan) {
  const Worklist& forward = plan.Of(Direction::kForward);
  std::vector<int64_t> heads(static_cast<size_t>(plan.num_masks), 0);
  for (const uint32_t mask : plan.mask_of) ++heads[mask];
  int64_t all = 0;
  for (int64_t mask = 0; mask < plan.num_masks; ++mask) {
    const TokenFacts facts = SpreadTokenFacts(plan, plan.batch_of[static_cast<size_t>(mask)]);
    int64_t pairs = 0;
    for (int64_t row = 0; row < forward.rows_per_mask; ++row) {
      const int64_t q_begin = row * forward.tile_q;
      const int64_t q_end = std::min<int64_t>(q_begin + forward.tile_q, plan.q_len);
      for (const Slot& slot : forward.Row(static_cast<uint64_t>(mask * forward.rows_per_mask + row))) {
        const int64_t kv_begin = int64_t{slot.index} * forward.tile_kv;
        const int64_t kv_end = std::min<int64_t>(kv_begin + forward.tile_kv, plan.kv_len);
        if (slot.cleanup == 0) {
          pairs += (q_end - q_begin) * (kv_end - kv_begin);
          continue;
        }
        for (int64_t q = q_begin; q < q_end; ++q) {
          for (int64_t k = kv_begin; k < kv_end; ++k) {
            pairs += TileAllows(plan, forward, slot.cleanup, facts, q, k) ? 1 : 0;
          }
        }
      }
    }
    all += pairs * heads[static_cast<size_t>(mask)];
  }
  return all;
}

Block MakeBlock(const std::vector<std::byte>& content) {
  constexpr size_t kLine = 64;
  Block block(static_cast<std::byte*>(std::aligned_alloc(kLine, (content.size() + kLine) / kLine * kLine)));
  std::memcpy(block.get(), content.data(), content.size());
  return block;
}

TensorRef Ref(const Problem& problem, const TensorMap& tensors, const std::string& name) {
  const Tensor& tensor = tensors.at(name);
  return {.type = tensor.type,
          .data = problem.blocks.at(name).get(),
          .batch_stride = tensor.shape[1] * tensor.shape[2] * tensor.shape[3],
          .head_stride = tensor.shape[2] * tensor.shape[3],
          .token_stride = tensor.shape[3]};
}

double LargestNorm(const Tensor& tensor) {
  const int64_t dim = tensor.shape[3];
  double largest = 0;
  for (int64_t begin = 0; begin < tensor.NumElements(); begin += dim) {
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) squares += tensor.At(begin + d) * tensor.At(begin + d);
    largest = std::max(largest, squares);
  }
  return std::sqrt(largest);
}

double LargestElement(const Tensor& tensor) {
  double largest = 0;
  for (int64_t i = 0; i < tensor.NumElements(); ++i) largest = std::max(largest, std::abs(tensor.At(i)));
  return largest;
}

double Growth(int64_t n) { return std::min(static_cast<double>(n), 4 * std::sqrt(static_cast<double>(n))); }

}  // namespace

Result<Problem> MakeProblem(Case shape, const Settings& settings) {
  Problem problem;
  if (settings.tokens > 0) shape.tokens = settings.tokens;
  problem.shape = std::move(shape);
  const Case& made = problem.shape;
  MaskTerms terms;
  if (Status registered = RegisterRandomTiles(terms); !registered) return tl::unexpected(std::move(registered.error()));
  Result<Contract> contract = ParseContract(
      fmt::format("version = 1\n[shape]\nq_len = {}\nnum_q_heads = {}\nnum_kv_heads = {}\ndim_qk = {}\ndtype = \"{}\"\n"
                  "[mask]\nexpr = \"{}\"\n[score]\nsoftcap = {:.1f}\n",
                  made.tokens, made.heads, made.kv_heads, made.dim, ToText(made.dtype), MaskText(made, settings.seed),
                  made.softcap),
      ".", &terms);
  if (!contract) return tl::unexpected(std::move(contract.error()));
  problem.contract = std::move(*contract);
  problem.document_lengths = DocumentLengths(made, settings.seed);
  problem.batch = MakeBatch(problem);
  Result<Target> target = FindTarget("cpu");
  if (!target) return tl::unexpected(std::move(target.error()));
  problem.target = std::move(*target);
  if (Status planned = MakePlanFor(problem, settings.threads); !planned) {
    return tl::unexpected(std::move(planned.error()));
  }
  problem.pairs = CountPairs(problem.plan.view());
  problem.inputs = MakeInputs(problem.contract, settings.seed, true);
  const ElementType type = ToElementType(made.dtype);
  const auto add = [&](const char* name, const char* like) {
    problem.outputs[name] = Tensor::Zeros(type, problem.inputs.at(like).shape);
  };
  add("o", "q");
  add("dq", "q");
  add("dk", "k");
  add("dv", "v");
  problem.outputs["lse"] = Tensor::Zeros(ElementType::kF32, {1, made.heads, made.tokens});
  for (const TensorMap* tensors : {&problem.inputs, &problem.outputs}) {
    for (const auto& [name, tensor] : *tensors) problem.blocks[name] = MakeBlock(tensor.bytes);
  }
  return problem;
}

Status MakePlanFor(Problem& problem, int64_t threads) {
  problem.target.workers = threads;
  Result<PlanResult> plan = MakePlan(problem.contract, problem.batch, problem.target);
  if (!plan) return tl::unexpected(std::move(plan.error()));
  problem.plan = std::move(plan->plan);
  return {};
}

double Flops(const Problem& problem, Mode mode) {
  const Shape& shape = problem.contract.shape;
  const double forward = 2.0 * static_cast<double>(shape.dim_qk + shape.dim_v) * static_cast<double>(problem.pairs);
  return mode == Mode::kForward ? forward : 3.5 * forward;
}

Result<Times> RunOurs(Problem& problem, Mode mode, const Settings& settings) {
  RunOptions options;
  options.lane = settings.lane;
  options.threads = settings.threads;
  options.backward = mode == Mode::kBoth;
  options.isa = settings.isa;
  RunTensors tensors;
  tensors.q = Ref(problem, problem.inputs, "q");
  tensors.k = Ref(problem, problem.inputs, "k");
  tensors.v = Ref(problem, problem.inputs, "v");
  tensors.o = Ref(problem, problem.outputs, "o");
  tensors.lse = {reinterpret_cast<float*>(problem.blocks.at("lse").get()),
                 static_cast<size_t>(problem.outputs.at("lse").NumElements())};
  if (options.backward) {
    tensors.dout = Ref(problem, problem.inputs, "do");
    tensors.dq = Ref(problem, problem.outputs, "dq");
    tensors.dk = Ref(problem, problem.outputs, "dk");
    tensors.dv = Ref(problem, problem.outputs, "dv");
  }
  RunOutcome outcome =
      RunPlan(problem.contract, {.plan = &problem.plan, .batch = &problem.batch}, tensors, problem.target, options);
  if (outcome.error) return tl::unexpected(std::move(*outcome.error));
  for (auto& [name, tensor] : problem.outputs) {
    std::memcpy(tensor.bytes.data(), problem.blocks.at(name).get(), tensor.bytes.size());
  }
  Times times;
  for (const Timing& timing : outcome.receipt.timings) {
    if (timing.name == "forward") times.forward_s = static_cast<double>(timing.ns) * 1e-9;
    if (timing.name == "backward") times.backward_s = static_cast<double>(timing.ns) * 1e-9;
  }
  times.receipt = std::move(outcome.receipt);
  return times;
}

double Tolerance(const Problem& problem, const std::string& name) {
  const Shape& shape = problem.contract.shape;
  const double unit = std::ldexp(1.0, -24);
  const double rounding = shape.dtype == DType::kF32 ? 0 : std::ldexp(1.0, shape.dtype == DType::kBf16 ? -8 : -11);
  const double cast = shape.dtype == DType::kF32 ? unit : rounding;
  const double reach = problem.contract.score.scale * LargestNorm(problem.inputs.at("q")) *
                       LargestNorm(problem.inputs.at("k"));  // no score is larger
  const double score = unit * (Growth(shape.dim_qk) + 8) * reach;
  const double weight = 2 * (score + unit * (4 * reach + 8)) + rounding + unit * (Growth(shape.kv_len) + 8);
  const double largest = LargestElement(problem.outputs.at(name));
  if (name == "o") return 2 * (weight * LargestElement(problem.inputs.at("v")) + cast * largest);
  return 2 * (4 * 2 * weight + cast) * largest;
}

Difference Compare(const Problem& problem, const TensorMap& theirs, double slack) {
  Difference result;
  double worst = -1;
  for (const auto& [name, tensor] : theirs) {
    const auto ours = problem.outputs.find(name);
    if (ours == problem.outputs.end() || ours->second.shape != tensor.shape) {
      return {.tensor = name + " (its shape)", .agrees = false};
    }
    double largest = 0;
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      const double apart = std::abs(tensor.At(i) - ours->second.At(i));
      largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
    }
    const double tolerance = slack * Tolerance(problem, name);
    const double share = largest / tolerance;
    result.agrees = result.agrees && largest <= tolerance;
    if (share > worst) {
      worst = share;
      result.tensor = name;
      result.largest = largest;
      result.tolerance = tolerance;
    }
  }
  return result;
}

}  // namespace tessera::bench
