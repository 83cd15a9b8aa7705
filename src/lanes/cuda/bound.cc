// A call: checks, tensor maps, launches; in this order, so that nothing is launched for a call that fails.
#include "lanes/cuda/bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/math.h"
#include "base/try.h"
#include "lanes/check_args.h"
#include "lanes/cuda/check_memory.h"
#include "lanes/cuda/copies.h"

namespace tessera::lanes::cuda {
namespace {

constexpr std::string_view kName = "cuda";
constexpr std::string_view kIsa = "sm_90a";

ShapeParams ShapeOf(const Contract& contract, bool is_backward) {
  const Shape& s = contract.shape;
  const double scale = contract.score.scale;
  return {.batch = static_cast<int32_t>(s.batch),
          .num_q_heads = static_cast<int32_t>(s.num_q_heads),
          .num_kv_heads = static_cast<int32_t>(s.num_kv_heads),
          .q_len = static_cast<int32_t>(s.q_len),
          .kv_len = static_cast<int32_t>(s.kv_len),
          .padded_q = static_cast<int32_t>(PadTokens(s.q_len)),
          .scale = static_cast<float>(scale),
          .scale_log2 = static_cast<float>(scale * std::numbers::log2e),
          .softcap = MakeSoftcap(scale, contract.score.softcap, is_backward)};
}

TensorRows RowsOf(const TensorRef& ref) { return {ref.data, ref.batch_stride, ref.head_stride, ref.token_stride}; }

template <class T>
T* PointerOf(std::span<T> values) {
  return values.empty() ? nullptr : values.data();
}

struct LoadedKernel {
  const KernelRow* row = nullptr;
  Kernel kernel = nullptr;
};

class BoundCuda final : public BoundLane {
 public:
  BoundCuda(const BindRequest& request, std::shared_ptr<State> state, std::shared_ptr<Device> device, MemorySpace space)
      : contract_(request.contract),
        state_(std::move(state)),
        device_(std::move(device)),
        driver_(device_->driver()),
        space_(space),
        shape_(ShapeOf(request.contract, false)),
        backward_shape_(ShapeOf(request.contract, true)) {}

  Status Load(const BindRequest& request) {
    const ContextScope scope(driver_, device_->context());
    ImageNeeds needs{.forward = false, .backward = false};
    for (const Pass pass : request.passes) {
      if (pass == Pass::kForward) {
        needs.forward = true;
        TESSERA_TRY(Load(KernelKind::kForward));
      } else {
        needs.backward = true;
        TESSERA_TRY(Load(KernelKind::kPrepare));
        TESSERA_TRY(Load(KernelKind::kDq));
        TESSERA_TRY(Load(KernelKind::kDkv));
        if (contract_.score.sink_logits) TESSERA_TRY(Load(KernelKind::kSinks));
      }
    }
    TESSERA_TRY(Place(request, needs));
    work_ = plan().work();
    const auto has_parts = [](const ClassWork& work) { return work.parts > 0; };
    if (std::any_of(work_.begin(), work_.end(), has_parts)) TESSERA_TRY(Load(KernelKind::kJoin));
    return {};
  }

  // The plan on the device, in a place of its own or in an earlier one's.
  Status Place(const BindRequest& request, const ImageNeeds& needs) {
    if (request.earlier == nullptr) {
      use_ = std::make_shared<PlanUse>(PlanUse{TESSERA_TRY(state_->Upload(device_, contract_, request.plan, needs))});
      return {};
    }
    const auto& earlier = static_cast<const BoundCuda&>(*request.earlier);
    const auto stream = static_cast<Stream>(request.stream);
    TESSERA_TRY(CheckStream(stream));
    int capturing = 0;
    TESSERA_TRY(Done(driver_.stream_capturing(stream, &capturing), "asking whether the stream is captured"));
    if (capturing != 0) {
      return Fail(ErrorCode::kBadArgument, "the stream is being captured, and a plan is bound once", "cuda");
    }
    TESSERA_TRY(state_->Overwrite(*earlier.use_, contract_, request.plan, needs, stream));
    use_ = earlier.use_;
    return {};
  }

  const std::shared_ptr<Device>& device() const { return device_; }

  int64_t WorkspaceBytes(Pass pass) const override {
    return pass == Pass::kForward ? PartsOffset() + 4 * PartFloatsOf(KernelKind::kForward) : Places().bytes;
  }

  Result<int64_t> Forward(const ForwardArgs& args, const LaneCall& call) const override {
    if (IsCopied(args.q, call)) return ForwardCopied(args, call);
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward, call, space_), args, call));
    const ContextScope scope(driver_, device_->context());
    const auto stream = static_cast<Stream>(call.stream);
    TESSERA_TRY(CheckStream(stream));
    MemoryCheck check(driver_, *device_, contract_);
    check.Tensor("q", args.q, QueryAxes(contract_.shape.dim_qk));
    check.Tensor("k", args.k, KeyAxes(contract_.shape.dim_qk));
    check.Tensor("v", args.v, KeyAxes(contract_.shape.dim_v));
    check.Tensor("o", args.o, QueryAxes(contract_.shape.dim_v));
    check.Floats("sink_logits", args.sink_logits);
    check.Floats("lse", args.lse);
    check.Floats("max", args.row_max);
    check.Bytes("workspace", call.workspace);
    check.Image(call.image);
    TESSERA_TRY(check.Finish());
    return LaunchForward(args, call, stream);
  }

  Result<int64_t> Backward(const BackwardArgs& args, const LaneCall& call) const override {
    if (IsCopied(args.q, call)) return BackwardCopied(args, call);
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward, call, space_), args, call));
    const ContextScope scope(driver_, device_->context());
    const auto stream = static_cast<Stream>(call.stream);
    TESSERA_TRY(CheckStream(stream));
    const int64_t dim_qk = contract_.shape.dim_qk;
    const int64_t dim_v = contract_.shape.dim_v;
    MemoryCheck check(driver_, *device_, contract_);
    check.Tensor("q", args.q, QueryAxes(dim_qk));
    check.Tensor("k", args.k, KeyAxes(dim_qk));
    check.Tensor("v", args.v, KeyAxes(dim_v));
    check.Tensor("do", args.dout, QueryAxes(dim_v));
    if (args.delta.empty()) check.Tensor("o", args.o, QueryAxes(dim_v));
    check.Tensor("dq", args.dq, QueryAxes(dim_qk));
    check.Tensor("dk", args.dk, KeyAxes(dim_qk));
    check.Tensor("dv", args.dv, KeyAxes(dim_v));
    check.Floats("sink_logits", args.sink_logits);
    check.Floats("lse", args.lse);
    check.Floats("delta", args.delta);
    check.Floats("dsink_logits", args.dsink_logits);
    check.Bytes("workspace", call.workspace);
    check.Image(call.image);
    TESSERA_TRY(check.Finish());
    return LaunchBackward(args, call, stream);
  }

  Facts Describe() const override {
    return {kernel_names_,
            kIsa,
            {.kind = "gpu",
             .name = device_->facts().name,
             .ordinal = device_->facts().ordinal,
             .memory = ToText(MemorySpace{MemoryKind::kGpu, device_->facts().ordinal}),
             .driver = device_->facts().driver},
            {}};
  }

 private:
  UploadedPlan& plan() const { return *use_->plan; }

  Status Done(DriverResult result, std::string_view doing) const {
    if (result == kDriverSuccess) return {};
    return tl::unexpected(driver_.ErrorOf(result, doing));
  }

  Status Load(KernelKind kind) {
    const KernelRow* row = FindKernel(kind, contract_);
    if (row == nullptr) return Fail(ErrorCode::kLaneRefused, "the lane has no kernel for this contract", "cuda");
    kernels_[static_cast<size_t>(kind)] = {row, TESSERA_TRY(device_->Load(*row))};
    constexpr size_t kPrefix = std::string_view("tessera_").size();
    if (!kernel_names_.empty()) kernel_names_ += ' ';
    kernel_names_ += row->name.substr(kPrefix);
    return {};
  }

  TensorAxes QueryAxes(int64_t dim) const {
    return {contract_.shape.batch, contract_.shape.num_q_heads, contract_.shape.q_len, dim};
  }
  TensorAxes KeyAxes(int64_t dim) const {
    return {contract_.shape.batch, contract_.shape.num_kv_heads, contract_.shape.kv_len, dim};
  }

  CallCheck CheckOf(Pass pass, const LaneCall& call, MemorySpace space) const {
    return {.lane = kName,
            .contract = contract_,
            .workspace_bytes = call.workspace.empty() ? 0 : WorkspaceBytes(pass),
            .space = space,
            .takes_stream = true,
            .takes_image = true};
  }
  // The bound plan, or the one that the call brings: a launch depends on the class alone.
  const PlanHeader* HeaderOf(const LaneCall& call) const {
    return call.image.empty() ? plan().header() : reinterpret_cast<const PlanHeader*>(call.image.data());
  }

  Status CheckStream(Stream stream) const {
    if (stream == nullptr) return {};
    Context context = nullptr;
    TESSERA_TRY(Done(driver_.stream_context(stream, &context), "asking for the stream's context"));
    if (context == device_->context()) return {};
    return Fail(ErrorCode::kBadArgument, "the stream is of another context than the one this plan was bound in",
                "cuda");
  }

  // One call's hold of the plan and of workspace, in the order of its stream.
  struct Hold {
    bool is_capturing = false;
    bool is_bound_plan = true;
    DevicePointer workspace = 0;
    std::optional<Block> block;
  };
  Result<Hold> Begin(Pass pass, const LaneCall& call, Stream stream) const {
    Hold hold;
    int capturing = 0;
    TESSERA_TRY(Done(driver_.stream_capturing(stream, &capturing), "asking whether the stream is captured"));
    hold.is_capturing = capturing != 0;
    if (!call.workspace.empty()) {
      hold.workspace = reinterpret_cast<DevicePointer>(call.workspace.data());
    } else {
      hold.block = TESSERA_TRY(device_->TakeWorkspace(WorkspaceBytes(pass), stream, hold.is_capturing));
      hold.workspace = hold.block->device();
    }
    hold.is_bound_plan = call.image.empty();
    if (hold.is_bound_plan) TESSERA_TRY(plan().Begin(stream, hold.is_capturing));
    return hold;
  }
  Status End(Hold& hold, Stream stream) const {
    if (hold.is_bound_plan) TESSERA_TRY(plan().End(stream, hold.is_capturing));
    if (!hold.block) return {};
    if (!hold.is_capturing) return Done(hold.block->Record(stream), "recording an event");
    // The graph has it from now on; it lives as long as what is bound.
    const std::lock_guard lock(mutex_);
    hold.block->Keep();
    captured_.push_back(std::move(*hold.block));
    return {};
  }

  // dq begins where dkv, launched before it, leaves multiprocessors idle; the kernel itself ends after dkv has.
  static constexpr bool BeginsBeside(KernelKind kind) { return kind == KernelKind::kDq; }

  template <class Params>
  Status Launch(KernelKind kind, int64_t ctas, Stream stream, Params& params) const {
    const LoadedKernel& loaded = kernels_[static_cast<size_t>(kind)];
    LaunchConfig config{};
    config.grid_x = static_cast<unsigned>(ctas);
    config.grid_y = config.grid_z = 1;  // which may not be more than 65,535
    config.block_x = static_cast<unsigned>(ThreadsOf(kind));
    config.block_y = config.block_z = 1;
    config.shared_bytes = static_cast<unsigned>(SharedBytesOf(*loaded.row));
    config.stream = stream;
    LaunchAttribute beside{.id = kLaunchProgrammatic, .pad = {}, .value = 1};
    if (BeginsBeside(kind)) {
      config.attributes = &beside;
      config.num_attributes = 1;
    }
    void* arguments[] = {&params};
    const DriverResult result = driver_.launch(&config, loaded.kernel, arguments, nullptr);
    if (result == kDriverSuccess) return {};
    return tl::unexpected(driver_.ErrorOf(result, fmt::format("launching {}", loaded.row->name)));
  }
  const ClassWork& WorkOf(KernelKind kind) const { return work_[static_cast<size_t>(kind)]; }
  int64_t CtasFor(KernelKind kind) const { return std::min<int64_t>(WorkOf(kind).work(), device_->facts().num_sms); }

  // ---- rows that are cut: each part's sums lie in the workspace until join adds them

  struct RowTensor {
    int32_t dims[2];  // of what a row writes; 0: there is one tensor
    int32_t heads;
    int32_t len;
  };
  RowTensor RowTensorOf(KernelKind kind) const {
    const auto dim_qk = static_cast<int32_t>(contract_.shape.dim_qk);
    const auto dim_v = static_cast<int32_t>(contract_.shape.dim_v);
    if (kind == KernelKind::kDkv) return {{dim_qk, dim_v}, shape_.num_kv_heads, shape_.kv_len};
    return {{kind == KernelKind::kForward ? dim_v : dim_qk, 0}, shape_.num_q_heads, shape_.q_len};
  }
  int32_t PartRowsOf(KernelKind kind) const {
    return PartRows(TileOf(kind, static_cast<int32_t>(contract_.shape.dim_qk)).rows, RowTensorOf(kind).len);
  }
  int64_t PartFloatsOf(KernelKind kind) const {
    const RowTensor tensor = RowTensorOf(kind);
    return WorkOf(kind).parts * PartFloats(kind, PartRowsOf(kind), tensor.dims[0] + tensor.dims[1]);
  }
  int64_t PartsOffset() const {  // of forward's, in its workspace
    return WorkOf(KernelKind::kForward).parts > 0 ? AlignParts(kTicketBytes) : kTicketBytes;
  }
  BackwardWorkspace Places() const {
    const Shape& s = contract_.shape;
    return BackwardWorkspaceOf(s.batch, s.num_q_heads, s.q_len, contract_.score.sink_logits,
                               PartFloatsOf(KernelKind::kDq), PartFloatsOf(KernelKind::kDkv));
  }

  // Nothing where the class cuts no row. `params` has what differs between the kernels.
  Status Join(KernelKind kind, const PlanHeader* header, const float* parts, Stream stream, JoinParams params) const {
    if (WorkOf(kind).parts == 0) return {};
    const RowTensor tensor = RowTensorOf(kind);
    params.plan = header;
    params.parts = parts;
    params.kind = static_cast<int32_t>(kind);
    params.dims[0] = tensor.dims[0];
    params.dims[1] = tensor.dims[1];
    params.heads = tensor.heads;
    params.len = tensor.len;
    params.tile_rows = TileOf(kind, static_cast<int32_t>(contract_.shape.dim_qk)).rows;
    params.part_rows = PartRowsOf(kind);
    return Launch(KernelKind::kJoin, WorkOf(kind).splits * CeilDiv(params.part_rows, kJoinRows), stream, params);
  }

  Result<int64_t> LaunchForward(const ForwardArgs& args, const LaneCall& call, Stream stream) const {
    constexpr KernelKind kKind = KernelKind::kForward;
    const auto dim_qk = static_cast<int32_t>(contract_.shape.dim_qk);
    const auto dim_v = static_cast<int32_t>(contract_.shape.dim_v);
    ForwardParams p{};
    p.q = TESSERA_TRY(EncodeTensor(driver_, args.q, QueryAxes(dim_qk), RowBox(kKind, dim_qk, dim_qk)));
    p.k = TESSERA_TRY(EncodeTensor(driver_, args.k, KeyAxes(dim_qk), ColBox(kKind, dim_qk, dim_qk)));
    p.v = TESSERA_TRY(EncodeTensor(driver_, args.v, KeyAxes(dim_v), ColBox(kKind, dim_qk, dim_v)));
    p.o = TESSERA_TRY(EncodeTensor(driver_, args.o, QueryAxes(dim_v), OutBox()));
    p.v_rows = RowsOf(args.v);
    p.plan = HeaderOf(call);
    p.sinks = PointerOf(args.sink_logits);
    p.lse = PointerOf(args.lse);
    p.row_max = PointerOf(args.row_max);
    p.shape = shape_;
    Hold hold = TESSERA_TRY(Begin(Pass::kForward, call, stream));
    p.ticket = reinterpret_cast<uint32_t*>(hold.workspace) + kForwardTicket;
    p.parts = reinterpret_cast<float*>(hold.workspace + static_cast<DevicePointer>(PartsOffset()));
    const int64_t ctas = CtasFor(kKind);
    if (ctas < WorkOf(kKind).work()) {
      if (!hold.block || !hold.block->has_tickets()) {
        TESSERA_TRY(Done(driver_.fill_words(hold.workspace, 0, kNumTickets, stream), "clearing tickets"));
      }
      if (hold.block) hold.block->SetTickets();
    }
    TESSERA_TRY(Launch(kKind, ctas, stream, p));
    JoinParams join{};
    join.out[0] = RowsOf(args.o);
    join.sinks = p.sinks;
    join.lse = p.lse;
    join.row_max = p.row_max;
    TESSERA_TRY(Join(kKind, p.plan, p.parts, stream, join));
    TESSERA_TRY(End(hold, stream));
    return plan().tiles(kKind);
  }

  Result<BackwardParams> BackwardParamsOf(KernelKind kind, const BackwardArgs& args) const {
    const auto dim_qk = static_cast<int32_t>(contract_.shape.dim_qk);
    const auto dim_v = static_cast<int32_t>(contract_.shape.dim_v);
    const bool is_dq = kind == KernelKind::kDq;
    const Box row_qk = RowBox(kind, dim_qk, dim_qk);
    const Box row_v = RowBox(kind, dim_qk, dim_v);
    const Box col_qk = ColBox(kind, dim_qk, dim_qk);
    const Box col_v = ColBox(kind, dim_qk, dim_v);
    BackwardParams p{};
    const auto encode = [&](TensorMap& map, const TensorRef& ref, const TensorAxes& axes, const Box& box) -> Status {
      map = TESSERA_TRY(EncodeTensor(driver_, ref, axes, box));
      return {};
    };
    const TensorAxes q = QueryAxes(dim_qk);
    const TensorAxes o = QueryAxes(dim_v);
    const TensorAxes k = KeyAxes(dim_qk);
    const TensorAxes v = KeyAxes(dim_v);
    TESSERA_TRY(is_dq ? encode(p.rows[0], args.q, q, row_qk) : encode(p.rows[0], args.k, k, row_qk));
    TESSERA_TRY(is_dq ? encode(p.rows[1], args.dout, o, row_v) : encode(p.rows[1], args.v, v, row_v));
    TESSERA_TRY(is_dq ? encode(p.cols[0], args.k, k, col_qk) : encode(p.cols[0], args.q, q, col_qk));
    TESSERA_TRY(is_dq ? encode(p.cols[1], args.v, v, col_v) : encode(p.cols[1], args.dout, o, col_v));
    TESSERA_TRY(is_dq ? encode(p.out[0], args.dq, q, OutBox()) : encode(p.out[0], args.dk, k, OutBox()));
    if (!is_dq) TESSERA_TRY(encode(p.out[1], args.dv, v, OutBox()));
    p.col_rows[0] = RowsOf(is_dq ? args.k : args.q);
    p.col_rows[1] = RowsOf(is_dq ? args.v : args.dout);
    p.shape = backward_shape_;
    return p;
  }

  Result<int64_t> LaunchBackward(const BackwardArgs& args, const LaneCall& call, Stream stream) const {
    const Shape& s = contract_.shape;
    BackwardParams dq = TESSERA_TRY(BackwardParamsOf(KernelKind::kDq, args));
    BackwardParams dkv = TESSERA_TRY(BackwardParamsOf(KernelKind::kDkv, args));
    Hold hold = TESSERA_TRY(Begin(Pass::kBackward, call, stream));
    const BackwardWorkspace place = Places();
    const auto floats = [&](int64_t offset) {
      return reinterpret_cast<float*>(hold.workspace + static_cast<DevicePointer>(offset));
    };
    auto* tickets = reinterpret_cast<uint32_t*>(hold.workspace + static_cast<DevicePointer>(place.tickets));
    PrepareParams prepare{};
    prepare.o = RowsOf(args.o);
    prepare.dout = RowsOf(args.dout);
    prepare.lse = args.lse.data();
    prepare.delta_in = PointerOf(args.delta);
    prepare.sinks = PointerOf(args.sink_logits);
    prepare.lse2 = floats(place.lse2);
    prepare.delta = floats(place.delta);
    prepare.sink_parts = args.dsink_logits.empty() ? nullptr : floats(place.sink_parts);
    prepare.tickets = tickets;
    prepare.shape = shape_;
    prepare.dim_v = static_cast<int32_t>(s.dim_v);
    if (hold.block) hold.block->SetTickets();
    TESSERA_TRY(
        Launch(KernelKind::kPrepare, s.batch * s.num_q_heads * shape_.padded_q / kPrepareRows, stream, prepare));
    for (BackwardParams* p : {&dkv, &dq}) {
      p->plan = HeaderOf(call);
      p->lse2 = prepare.lse2;
      p->delta = prepare.delta;
      p->ticket = tickets + (p == &dq ? kDqTicket : kDkvTicket);
      p->parts = floats(p == &dq ? place.dq_parts : place.dkv_parts);
      const KernelKind kind = p == &dq ? KernelKind::kDq : KernelKind::kDkv;
      TESSERA_TRY(Launch(kind, CtasFor(kind), stream, *p));
    }
    JoinParams join{};
    join.factors[0] = shape_.scale;
    join.factors[1] = 1.0F;
    join.out[0] = RowsOf(args.dk);
    join.out[1] = RowsOf(args.dv);
    TESSERA_TRY(Join(KernelKind::kDkv, dkv.plan, dkv.parts, stream, join));
    join.out[0] = RowsOf(args.dq);
    join.out[1] = {};
    TESSERA_TRY(Join(KernelKind::kDq, dq.plan, dq.parts, stream, join));
    if (!args.dsink_logits.empty()) {
      SinksParams sinks{.sink_parts = prepare.sink_parts, .dsink = args.dsink_logits.data(), .shape = shape_};
      TESSERA_TRY(Launch(KernelKind::kSinks, s.num_q_heads, stream, sinks));
    }
    TESSERA_TRY(End(hold, stream));
    return plan().tiles(KernelKind::kDkv);
  }

  // ---- host tensors, of a one-shot run

  static bool IsCopied(const TensorRef& q, const LaneCall& call) {
    return call.may_copy && q.space.kind == MemoryKind::kHost;
  }

  Result<int64_t> ForwardCopied(const ForwardArgs& args, const LaneCall& call) const {
    TESSERA_TRY(CheckForward(CheckOf(Pass::kForward, {}, {}), args, {}));
    const ContextScope scope(driver_, device_->context());
    Copies copies(*device_, space_);
    ForwardArgs there{};
    there.q = copies.In(args.q, QueryAxes(contract_.shape.dim_qk));
    there.k = copies.In(args.k, KeyAxes(contract_.shape.dim_qk));
    there.v = copies.In(args.v, KeyAxes(contract_.shape.dim_v));
    there.sink_logits = copies.In(args.sink_logits);
    there.o = copies.Out(args.o, QueryAxes(contract_.shape.dim_v));
    there.lse = copies.Out(args.lse);
    there.row_max = copies.Out(args.row_max);
    TESSERA_TRY(copies.status());
    const int64_t tiles = TESSERA_TRY(LaunchForward(there, {}, device_->upload_stream()));
    TESSERA_TRY(copies.Finish());
    if (call.copied_bytes != nullptr) *call.copied_bytes += copies.bytes();
    return tiles;
  }

  Result<int64_t> BackwardCopied(const BackwardArgs& args, const LaneCall& call) const {
    TESSERA_TRY(CheckBackward(CheckOf(Pass::kBackward, {}, {}), args, {}));
    const ContextScope scope(driver_, device_->context());
    Copies copies(*device_, space_);
    BackwardArgs there{};
    there.q = copies.In(args.q, QueryAxes(contract_.shape.dim_qk));
    there.k = copies.In(args.k, KeyAxes(contract_.shape.dim_qk));
    there.v = copies.In(args.v, KeyAxes(contract_.shape.dim_v));
    there.dout = copies.In(args.dout, QueryAxes(contract_.shape.dim_v));
    if (args.delta.empty()) there.o = copies.In(args.o, QueryAxes(contract_.shape.dim_v));
    there.sink_logits = copies.In(args.sink_logits);
    there.lse = copies.In(args.lse);
    there.delta = copies.In(args.delta);
    there.dq = copies.Out(args.dq, QueryAxes(contract_.shape.dim_qk));
    there.dk = copies.Out(args.dk, KeyAxes(contract_.shape.dim_qk));
    there.dv = copies.Out(args.dv, KeyAxes(contract_.shape.dim_v));
    there.dsink_logits = copies.Out(args.dsink_logits);
    TESSERA_TRY(copies.status());
    const int64_t tiles = TESSERA_TRY(LaunchBackward(there, {}, device_->upload_stream()));
    TESSERA_TRY(copies.Finish());
    if (call.copied_bytes != nullptr) *call.copied_bytes += copies.bytes();
    return tiles;
  }

  const Contract& contract_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Device> device_;
  const Driver& driver_;
  MemorySpace space_;
  ShapeParams shape_;
  ShapeParams backward_shape_;
  std::array<LoadedKernel, 6> kernels_{};  // by KernelKind
  std::array<ClassWork, kNumDirections> work_{};
  std::string kernel_names_;
  std::shared_ptr<PlanUse> use_;
  mutable std::mutex mutex_;
  mutable std::vector<Block> captured_;  // workspaces of captured calls
};

}  // namespace

Result<TensorMap> EncodeTensor(const Driver& driver, const TensorRef& ref, const std::array<int64_t, 4>& axes,
                               const Box& box) {
  constexpr uint64_t kPanel = 64;
  constexpr int kFloat16 = 6;
  constexpr int kBfloat16 = 9;
  constexpr int kSwizzle128 = 3;
  constexpr int kPromote256 = 3;
  // An axis of one element has no stride that matters, and the driver wants one it likes.
  const auto stride = [](int64_t elements, int64_t extent) {
    return extent == 1 ? uint64_t{128} : static_cast<uint64_t>(elements) * 2;
  };
  const uint64_t sizes[5] = {kPanel, static_cast<uint64_t>(axes[2]), static_cast<uint64_t>(axes[3]) / kPanel,
                             static_cast<uint64_t>(axes[1]), static_cast<uint64_t>(axes[0])};
  const uint64_t strides[4] = {stride(ref.token_stride, axes[2]), 2 * kPanel, stride(ref.head_stride, axes[1]),
                               stride(ref.batch_stride, axes[0])};
  const uint32_t boxes[5] = {kPanel, static_cast<uint32_t>(box.tokens), static_cast<uint32_t>(box.panels), 1, 1};
  constexpr uint32_t kOnes[5] = {1, 1, 1, 1, 1};
  TensorMap map{};
  const DriverResult result =
      driver.encode_tiled(&map, ref.type == ElementType::kBf16 ? kBfloat16 : kFloat16, 5, ref.data, sizes, strides,
                          boxes, kOnes, 0, kSwizzle128, kPromote256, 0);
  if (result == kDriverSuccess) return map;
  return Fail(ErrorCode::kTensorMismatch,
              fmt::format("the driver takes no [{}] of strides {}, {}, {}", fmt::join(axes, ", "), ref.batch_stride,
                          ref.head_stride, ref.token_stride),
              "cuda");
}

Result<std::unique_ptr<BoundLane>> MakeBound(const std::shared_ptr<State>& state, const BindRequest& request,
                                             const MemorySpace& space) {
  std::shared_ptr<Device> device = request.earlier == nullptr
                                       ? TESSERA_TRY(state->Open(space.ordinal))
                                       : static_cast<const BoundCuda&>(*request.earlier).device();
  auto bound = std::make_unique<BoundCuda>(request, state, std::move(device), space);
  TESSERA_TRY(bound->Load(request));
  return bound;
}

}  // namespace tessera::lanes::cuda
