// The lane object: what it accepts, and why not.
#include "lanes/cuda/cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/cuda/bound.h"
#include "lanes/cuda/image.h"
#include "lanes/cuda/kernels.h"
#include "lanes/cuda/state.h"

namespace tessera {
namespace {

namespace cuda = lanes::cuda;

constexpr std::string_view kName = "cuda";
constexpr std::string_view kIsa = "sm_90a";

constexpr cuda::KernelKind kTiled[] = {cuda::KernelKind::kForward, cuda::KernelKind::kDq, cuda::KernelKind::kDkv};

class Cuda final : public Lane {
 public:
  Cuda(std::shared_ptr<cuda::State> state, CudaOptions options) : state_(std::move(state)), options_(options) {}

  std::string_view name() const override { return kName; }
  std::vector<std::string_view> Isas() const override { return {kIsa}; }

  // Whether there are kernels for it; needs no device.
  Decision DecideKernels(const Contract& contract) const {
    const Shape& s = contract.shape;
    const auto has = [&](const auto& fits) {
      return std::any_of(cuda::KernelRows().begin(), cuda::KernelRows().end(), fits);
    };
    if (!has([&](const cuda::KernelRow& row) {
          return row.kind == cuda::KernelKind::kForward && row.dtype == s.dtype;
        })) {
      return Decision::No(ReasonCode::kCudaDtype, fmt::format("dtype {}", ToText(s.dtype)));
    }
    for (const cuda::KernelKind kind : kTiled) {
      if (cuda::FindKernel(kind, contract) == nullptr) {
        return Decision::No(ReasonCode::kCudaHeadDim,
                            fmt::format("dim_qk {}, dim_v {}, softcap {}", s.dim_qk, s.dim_v, contract.score.softcap));
      }
    }
    if (contract.score.softcap > 0 && !cuda::FitsSoftcap(contract.score.scale, contract.score.softcap)) {
      return Decision::No(ReasonCode::kCudaSoftcap,
                          fmt::format("scale {}, softcap {}", contract.score.scale, contract.score.softcap));
    }
    if (s.q_len > cuda::kMaxTokens || s.kv_len > cuda::kMaxTokens) {
      return Decision::No(ReasonCode::kCudaTooLong,
                          fmt::format("{} x {} tokens, at most {}", s.q_len, s.kv_len, cuda::kMaxTokens));
    }
    if (s.batch * s.num_q_heads * cuda::PadTokens(s.q_len) > cuda::kMaxStatistics) {
      return Decision::No(ReasonCode::kCudaTooLong, fmt::format("{} rows of {} heads, more than 31 bits count",
                                                                s.batch * s.q_len, s.num_q_heads));
    }
    if (contract.routing && options_.memory.kind == MemoryKind::kGpu) {
      return Decision::No(ReasonCode::kCudaRouting, "q and k would be scored on the host");
    }
    return Decision::Yes();
  }

  Decision Decide(const Contract& contract, const Target&) const override {
    if (Decision decision = DecideKernels(contract); !decision.accepted) return decision;
    const cuda::LoadedDriver loaded = state_->driver();
    return loaded.driver == nullptr ? Decision::No(ReasonCode::kCudaNoDriver, loaded.problem) : Decision::Yes();
  }

  // Whether its tiles are those of the kernels; needs no device.
  static Decision DecideTiles(const Contract& contract, const PlanView& plan) {
    for (const cuda::KernelKind kind : kTiled) {
      const Worklist& list = plan.Of(static_cast<Direction>(kind));
      if (list.rows_per_mask == 0) continue;
      const cuda::Tile tile = cuda::TileOf(kind, static_cast<int32_t>(contract.shape.dim_qk));
      const bool is_dkv = kind == cuda::KernelKind::kDkv;
      const int64_t rows = is_dkv ? list.tile_kv : list.tile_q;
      const int64_t columns = is_dkv ? list.tile_q : list.tile_kv;
      if (rows == tile.rows && columns == tile.cols) continue;
      return Decision::No(
          ReasonCode::kCudaTile,
          fmt::format("tiles of {} are {} x {}, the kernels' {} x {}", ToText(static_cast<Direction>(kind)),
                      list.tile_q, list.tile_kv, is_dkv ? tile.cols : tile.rows, is_dkv ? tile.rows : tile.cols));
    }
    return Decision::Yes();
  }

  Decision DecidePlan(const Contract& contract, const PlanView& plan, const Target&) const override {
    if (Decision decision = DecideTiles(contract, plan); !decision.accepted) return decision;
    const Result<cuda::DeviceFacts> facts = state_->Facts(options_.memory.ordinal);
    if (!facts) return Decision::No(ReasonCode::kCudaNoDevice, facts.error().message);
    if (facts->major != 9 || facts->minor != 0) {
      return Decision::No(ReasonCode::kCudaOtherGpu,
                          fmt::format("GPU {} is a {}, of compute capability {}.{}", facts->ordinal, facts->name,
                                      facts->major, facts->minor));
    }
    return Decision::Yes();
  }

  Result<std::unique_ptr<BoundLane>> Bind(const BindRequest& request) const override {
    const std::vector<std::string_view> isas = Isas();
    TESSERA_TRY(CheckBind(request, {.lane = kName, .isas = isas}));
    for (const Decision& decision :
         {Decide(request.contract, request.target), DecidePlan(request.contract, request.plan, request.target)}) {
      TESSERA_TRY(Accepted(decision));
    }
    return cuda::MakeBound(state_, request, {MemoryKind::kGpu, options_.memory.ordinal});
  }

  Result<std::vector<std::byte>> Image(const BindRequest& request) const override {
    const std::vector<std::string_view> isas = Isas();
    TESSERA_TRY(CheckBind(request, {.lane = kName, .isas = isas}));
    TESSERA_TRY(Accepted(DecideKernels(request.contract)));
    TESSERA_TRY(Accepted(DecideTiles(request.contract, request.plan)));
    cuda::ImageNeeds needs{.forward = false, .backward = false};
    for (const Pass pass : request.passes) (pass == Pass::kForward ? needs.forward : needs.backward) = true;
    return TESSERA_TRY(cuda::MakeImage(request.contract, request.plan, needs)).bytes;
  }

 private:
  static Status Accepted(const Decision& decision) {
    if (decision.accepted) return {};
    return Fail(ErrorCode::kLaneRefused, fmt::format("{}: {}", ReasonText(decision.reason), decision.detail), "cuda");
  }

  std::shared_ptr<cuda::State> state_;
  CudaOptions options_;
};

}  // namespace

std::shared_ptr<cuda::State> MakeCudaState(const cuda::Driver* driver) { return std::make_shared<cuda::State>(driver); }

bool HasCudaKernels() { return !cuda::EmbeddedCubins().empty(); }

std::unique_ptr<Lane> MakeCudaLane(std::shared_ptr<cuda::State> state, CudaOptions options) {
  return std::make_unique<Cuda>(std::move(state), options);
}

}  // namespace tessera
