// See shard_time.h.
#include "shard_time.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "checked.h"
#include "tessera/engine.h"
#include "tessera/run.h"
#include "tessera/shard_run.h"

namespace tessera::bench {
namespace {

constexpr int64_t kTile = 256;
constexpr int64_t kHeads = 8;
constexpr int64_t kDim = 64;

struct Timed {
  std::vector<double> ms = {};
  double cpu_ms = 0;  // of all calls but the first
};
double CpuMs() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto of = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) * 1e-3;
  };
  return of(use.ru_utime) + of(use.ru_stime);
}
void Call(const std::function<Status()>& run, bool is_counted, Timed& timed) {
  const double cpu = CpuMs();
  const auto start = std::chrono::steady_clock::now();
  Check(run());
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (!is_counted) return;
  timed.ms.push_back(ms);
  timed.cpu_ms += CpuMs() - cpu;
}
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

ShardTime TimeOne(const Engine& engine, const std::string& mask, const Batch& batch, const ShardTimes& times) {
  Contract contract;
  contract.shape = {.batch = 1,
                    .q_len = times.tokens,
                    .kv_len = times.tokens,
                    .num_q_heads = kHeads,
                    .num_kv_heads = kHeads,
                    .dim_qk = kDim,
                    .dim_v = kDim,
                    .dtype = DType::kF32};
  contract.mask.heads = {Checked(ParseMaskExpr(mask))};
  contract.score.scale = 0.125;
  Target target = Checked(FindTarget("cpu"));
  target.workers = static_cast<int64_t>(std::thread::hardware_concurrency());
  const TensorMap inputs = MakeInputs(contract, times.seed, false);

  AttentionOptions alone;
  alone.lane = "xla_chunked";
  alone.plan.tile = TileSize{kTile, kTile};
  const Attention attention = Checked(engine.Prepare(contract, target, alone));
  PlanResult plan = Checked(attention.Plan(batch));
  const Bound bound = Checked(attention.Bind(std::move(plan.plan)));
  const Shape& s = contract.shape;
  std::vector<float> want(static_cast<size_t>(s.num_q_heads * s.q_len * s.dim_v));
  std::vector<float> lse(static_cast<size_t>(s.num_q_heads * s.q_len));
  RunTensors tensors;
  // Where XLA uses memory as it lies, which is the best for this side.
  std::vector<std::vector<std::byte>> rooms(3);
  const auto aligned = [&](std::vector<std::byte>& room, const Tensor& tensor) {
    constexpr size_t kAlignment = 64;
    room.resize(tensor.bytes.size() + kAlignment);
    void* at = room.data();
    size_t left = room.size();
    std::align(kAlignment, tensor.bytes.size(), at, left);
    std::memcpy(at, tensor.bytes.data(), tensor.bytes.size());
    return DenseView(at, ElementType::kF32, {s.batch, s.num_q_heads, s.q_len, s.dim_v});
  };
  tensors.q = aligned(rooms[0], inputs.at("q"));
  tensors.k = aligned(rooms[1], inputs.at("k"));
  tensors.v = aligned(rooms[2], inputs.at("v"));
  tensors.o = DenseView(want.data(), {s.batch, s.num_q_heads, s.q_len, s.dim_v});
  tensors.lse = lse;

  ShardRunOptions options;
  options.context.shards = times.shards;
  options.context.plan.tile = TileSize{kTile, kTile};
  const BoundShards shards = Checked(BoundShards::Bind(engine, contract, batch, target, options));
  ShardOutputs own;

  Timed sharded;
  Timed whole;
  for (int64_t i = 0; i <= times.repeats; ++i) {
    Call([&] { return shards.Forward(inputs, own); }, i > 0, sharded);
    Call([&] { return bound.Forward(tensors); }, i > 0, whole);
  }
  // A reordered row ends its tiles elsewhere, so that sums are taken in another order.
  double apart = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    float mine = 0;
    std::memcpy(&mine, own.o.data() + i * sizeof(float), sizeof(mine));
    apart = std::max(apart, std::abs(static_cast<double>(mine) - static_cast<double>(want[i])));
  }
  const auto calls = static_cast<double>(times.repeats);
  ShardTime out;
  out.what = fmt::format("{}, {} tokens, {} cores", mask, times.tokens, std::thread::hardware_concurrency());
  out.ratio = Median(sharded.ms) / Median(whole.ms);
  out.about = fmt::format(
      "{}: medians of {} calls each, taking turns: {:.1f} ms on {} devices, {:.1f} ms unsharded, ratio {:.3f}; "
      "processor "
      "time of a call {:.1f} and {:.1f} ms; fastest {:.1f} and {:.1f} ms; outputs at most {:.1e} apart; largest shard "
      "{:.3f} of the "
      "mean in tiles; {}",
      out.what, times.repeats, Median(sharded.ms), times.shards, Median(whole.ms), out.ratio, sharded.cpu_ms / calls,
      whole.cpu_ms / calls, *std::min_element(sharded.ms.begin(), sharded.ms.end()),
      *std::min_element(whole.ms.begin(), whole.ms.end()), apart, shards.plan().TileBalance(), shards.plan().reason);
  if (!(apart < 1e-4)) Check(Fail(ErrorCode::kCheckFailed, out.about, "shard"));
  return out;
}

}  // namespace

std::vector<ShardTime> TimeShards(const ShardTimes& times) {
  const Engine engine{OptionsFromEnvironment()};
  std::mt19937_64 random(times.seed);
  std::vector<int32_t> lengths;
  for (int64_t left = times.tokens; left > 0; left -= lengths.back()) {
    lengths.push_back(static_cast<int32_t>(std::min<int64_t>(left, 32 + static_cast<int64_t>(random() % 4033))));
  }
  if (!times.documents.empty()) {
    std::ofstream file(times.documents);
    for (const int32_t length : lengths) file << length << "\n";
  }
  Batch batch;
  batch.doc_lengths = IntRows{lengths};
  std::vector<ShardTime> out;
  out.push_back(TimeOne(engine, "causal and documents", batch, times));
  out.push_back(TimeOne(engine, "window(1023, 0)", {}, times));
  out.push_back(TimeOne(engine, "causal and documents and window(1023, 0)", batch, times));
  return out;
}

}  // namespace tessera::bench
