// See cut_call.h.
#include "shard/cut_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>

#include "base/math.h"
#include "base/try.h"
#include "lanes/workers.h"
#include "lanes/xla/programs.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "shard/audit_program.h"
#include "shard/cut_program.h"
#include "shard/stretches.h"
#include "tessera/dtype.h"

namespace tessera::shard {
namespace {

using stablehlo::ContextKind;

// Of all shards together: enough for cores to end together, and few enough for what a call costs.
constexpr int64_t kParts = 64;

// The most tiles of others that a shard needs of one batch row.
int64_t MostReceived(const ContextPlan& plan) {
  const int64_t tiles = plan.shards * plan.tiles_per_shard;
  int64_t most = 0;
  for (const auto& target : plan.needs) {
    std::vector<int64_t> came(plan.rows.size(), 0);
    for (const auto& source : target) {
      for (const int32_t id : source) most = std::max(most, ++came[static_cast<size_t>(id / tiles)]);
    }
  }
  return most;
}

// Memory that a plugin uses where it lies.
struct Room {
  explicit Room(size_t size) : memory(size + kLentAlignment) {
    void* at = memory.data();
    size_t left = memory.size();
    bytes = {static_cast<std::byte*>(std::align(kLentAlignment, size, at, left)), size};
  }
  static constexpr size_t kLentAlignment = 64;  // else it is copied

  std::vector<std::byte> memory;
  std::span<std::byte> bytes;
};

// What one shard holds of a tensor, [batch, heads, tokens of the shard, dim].
struct Staged {
  const char* name = "";
  int64_t heads = 0;
  int64_t token_bytes = 0;
  Room room;
};

// A tensor of a shard, which any device of this machine may be lent.
struct Held {
  pjrt::TensorType type;
  std::span<const std::byte> bytes;
};
using HeldTensors = std::map<std::string, Held>;

}  // namespace

struct CutCall::State {
  pjrt::Client& client;
  pjrt::Client& walker;
  const std::shared_ptr<const ContextPlan> plan;
  const int64_t threads;
  stablehlo::ContextSpec spec = {};
  stablehlo::ProgramSpec walked = {};  // what a device walks, in parts
  std::vector<stablehlo::NamedType> bring_inputs = {};
  std::vector<stablehlo::NamedType> walk_inputs = {};
  std::optional<pjrt::Executable> bring = {};
  std::optional<pjrt::Executable> walk = {};
  std::vector<std::map<std::string, pjrt::Buffer>> held = {};  // [shard]: what bringing reads, and no call changes
  std::vector<std::map<std::string, Room>> kept = {};          // [shard]: the same of walking
  std::vector<std::vector<std::map<std::string, pjrt::LentBuffer>>> lent = {};  // [stream][shard]: kept, on a device
  std::vector<std::vector<int64_t>> given = {};  // [device]: the given token of each of its rows' tokens, -1 for none
  std::vector<std::pair<int64_t, int64_t>> units = {};  // device and part, those with most tiles first
  mutable std::mutex mutex = {};
  mutable std::vector<std::vector<Staged>> staged = {};  // [shard][q, k, v]

  bool IsHeads() const { return spec.kind == ContextKind::kHeads; }

  Status Compile(const std::map<std::string, pjrt::OptionValue>& flags) {
    const auto room =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(MostReceived(*plan), 1))));
    spec = TESSERA_TRY(ContextSpecOf(*plan, {.received = room}));
    if (spec.kind == ContextKind::kRing) {
      return Fail(ErrorCode::kContextCut,
                  "a ring walks a shard's keys as they come, and is one program: take another exchange", "exchange");
    }
    walked = spec.local;
    const int64_t rows = walked.RowsOf(Direction::kForward).rows;
    walked.parts = CeilDiv(rows, CeilDiv(rows, CeilDiv(kParts, plan->shards)));  // none is empty
    const stablehlo::ContextProgram brings = TESSERA_TRY(stablehlo::LowerContextBring(spec));
    const ShardTable table = TESSERA_TRY(TableOfBring(*plan, brings));
    const stablehlo::Program walks = TESSERA_TRY(stablehlo::LowerForward(walked));
    bring_inputs = brings.program.inputs;
    walk_inputs = walks.inputs;
    pjrt::CompileOptions options = lanes::xla::CompileOptionsFor(brings.program, {});
    for (int64_t d = 0; d < plan->shards; ++d)
      options.device_ids.push_back(client.devices()[static_cast<size_t>(d)].id);
    options.overrides = flags;
    bring.emplace(TESSERA_TRY(client.Compile(brings.program.text, options)));
    const pjrt::OptimizedProgram inside = TESSERA_TRY(bring->Optimized());
    TESSERA_TRY(AuditProgram(table, TensorsOf(brings), inside));
    options = lanes::xla::CompileOptionsFor(walks, {});
    options.overrides = flags;
    walk.emplace(TESSERA_TRY(walker.Compile(walks.text, options)));
    return {};
  }

  Status Hold() {
    DeviceTables tables = TESSERA_TRY(MakeDeviceTables(spec, *plan));
    TESSERA_TRY(CheckRounds(spec, tables));
    const auto scale = static_cast<float>(plan->contract.score.scale);
    const auto softcap = static_cast<float>(plan->contract.score.softcap);
    const auto bytes_of = [&](size_t shard, const std::string& name, const pjrt::TensorType& type) {
      if (name == "scale") return std::as_bytes(std::span(&scale, 1));
      if (name == "softcap") return std::as_bytes(std::span(&softcap, 1));
      const auto table = tables[shard].find(name);
      if (table == tables[shard].end() || name == "part") return std::span<const std::byte>();  // a call's own
      if (name == "words") table->second.resize(static_cast<size_t>(type.bytes()) / sizeof(int32_t));
      return std::as_bytes(std::span<const int32_t>(table->second));
    };
    held.resize(tables.size());
    kept.resize(tables.size());
    for (size_t shard = 0; shard < tables.size(); ++shard) {
      for (size_t i = 0; i < bring_inputs.size(); ++i) {
        const std::string& name = bring_inputs[i].name;
        const pjrt::TensorType& type = bring->inputs()[i];
        const std::span<const std::byte> bytes = bytes_of(shard, name, type);
        if (bytes.empty()) continue;
        held[shard].emplace(name, TESSERA_TRY(client.Upload(type, bytes, static_cast<int64_t>(shard))));
      }
      for (size_t i = 0; i < walk_inputs.size(); ++i) {
        const std::string& name = walk_inputs[i].name;
        const std::span<const std::byte> bytes = bytes_of(shard, name, walk->inputs()[i]);
        if (bytes.empty()) continue;
        const auto at = kept[shard].try_emplace(name, bytes.size()).first;
        std::memcpy(at->second.bytes.data(), bytes.data(), bytes.size());
      }
    }
    TESSERA_TRY(LendKept());
    Order(tables);
    Lay();
    return {};
  }

  // A device runs one program at a time, and the CPU's are all this machine: each thread has one of its own, whatever
  // shard's rows it walks, and reads the shard's tensors where they lie.
  int64_t NumStreams() const {
    const auto devices = static_cast<int64_t>(walker.devices().size());
    return std::min({threads, devices, static_cast<int64_t>(kept.size()) * walked.parts});
  }
  Status LendKept() {
    lent.resize(static_cast<size_t>(NumStreams()));
    for (size_t stream = 0; stream < lent.size(); ++stream) {
      lent[stream].resize(kept.size());
      for (size_t shard = 0; shard < kept.size(); ++shard) {
        for (size_t i = 0; i < walk_inputs.size(); ++i) {
          const auto found = kept[shard].find(walk_inputs[i].name);
          if (found == kept[shard].end()) continue;
          lent[stream][shard].emplace(found->first, TESSERA_TRY(walker.Lend(walk->inputs()[i], found->second.bytes,
                                                                            static_cast<int64_t>(stream))));
        }
      }
    }
    return {};
  }

  void Order(const DeviceTables& tables) {
    const stablehlo::ListShape& list = walked.Of(Direction::kForward);
    const stablehlo::PartRows rows = walked.RowsOf(Direction::kForward);
    std::vector<int64_t> tiles;
    for (size_t d = 0; d < tables.size(); ++d) {
      const std::vector<int32_t>& counts = tables[d].at(stablehlo::ListInput(Direction::kForward, "counts"));
      const std::vector<int32_t>& mask_of = tables[d].at("mask_of");
      for (int64_t part = 0; part < walked.parts; ++part) {
        int64_t sum = 0;
        for (int64_t n = part * rows.per_part; n < std::min(rows.rows, (part + 1) * rows.per_part); ++n) {
          const int64_t mask = mask_of[static_cast<size_t>(n / list.rows)];
          sum += counts[static_cast<size_t>(mask * list.rows + n % list.rows)];
        }
        units.emplace_back(static_cast<int64_t>(d), part);
        tiles.push_back(sum);
      }
    }
    std::vector<size_t> order(units.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tiles[a] > tiles[b]; });
    std::vector<std::pair<int64_t, int64_t>> sorted;
    for (const size_t i : order) sorted.push_back(units[i]);
    units = std::move(sorted);
  }

  // What each device holds, and where what its rows give belongs.
  void Lay() {
    const Shape& s = plan->contract.shape;
    const int64_t e = BytesOf(s.dtype);
    const auto own = static_cast<int64_t>(plan->rows.size()) * spec.tokens;
    for (size_t d = 0; d < static_cast<size_t>(plan->shards); ++d) {
      std::vector<Staged>& mine = staged.emplace_back();
      for (const auto& [name, heads, dim] :
           {std::tuple("q", s.num_q_heads, s.dim_qk), std::tuple("k", s.num_kv_heads, s.dim_qk),
            std::tuple("v", s.num_kv_heads, s.dim_v)}) {
        mine.push_back({name, heads, dim * e, Room(static_cast<size_t>(heads * dim * e * own))});
      }
    }
    const int64_t q_len = spec.local.shape.q_len;
    for (size_t d = 0; d < static_cast<size_t>(plan->shards); ++d) {
      std::vector<int64_t>& tokens = given.emplace_back(plan->rows.size() * static_cast<size_t>(q_len), -1);
      const size_t first = IsHeads() ? 0 : d;
      const size_t last = IsHeads() ? static_cast<size_t>(plan->shards) : d + 1;
      for (size_t b = 0; b < plan->rows.size(); ++b) {
        for (size_t shard = first; shard < last; ++shard) {
          const int64_t base = static_cast<int64_t>(b) * q_len + static_cast<int64_t>(shard - first) * spec.tokens;
          ForStretches(plan->rows[b], shard, [&](int64_t from, int64_t at, int64_t count) {
            std::iota(tokens.begin() + base + at, tokens.begin() + base + at + count, from);
          });
        }
      }
    }
  }

  Status Stage(const WholeTensors& whole) const {
    const Shape& s = plan->contract.shape;
    const std::span<const std::byte> from[] = {whole.q, whole.k, whole.v};
    for (size_t t = 0; t < std::size(from); ++t) {
      const Staged& one = staged.front()[t];
      const auto expected = static_cast<size_t>(s.batch * one.heads * s.q_len * one.token_bytes);
      if (from[t].size() == expected) continue;
      return Fail(ErrorCode::kTensorMismatch, fmt::format("expected {} bytes, found {}", expected, from[t].size()),
                  one.name);
    }
    const int64_t most_heads = std::max(s.num_q_heads, s.num_kv_heads);
    const int64_t heads = s.batch * most_heads;
    lanes::RunUnits(threads, plan->shards * 3 * heads, [&](int64_t unit, int64_t) {
      const auto d = static_cast<size_t>(unit / (3 * heads));
      const auto t = static_cast<size_t>(unit / heads % 3);
      Staged& one = staged[d][t];
      const int64_t b = unit % heads / most_heads;
      const int64_t h = unit % most_heads;
      if (h >= one.heads) return;
      const int64_t head = b * one.heads + h;
      ForStretches(plan->rows[static_cast<size_t>(b)], d, [&](int64_t at, int64_t own, int64_t count) {
        std::memcpy(one.room.bytes.data() + (head * spec.tokens + own) * one.token_bytes,
                    from[t].data() + (head * s.q_len + at) * one.token_bytes,
                    static_cast<size_t>(count * one.token_bytes));
      });
    });
    return {};
  }

  // Of a call, each shard's: what it lends, what was brought, and where the tensors lie that its rows are walked with.
  struct OfShard {
    std::vector<pjrt::LentBuffer> lent = {};
    std::vector<pjrt::Buffer> brought = {};
    std::vector<float> sinks = {};
    HeldTensors tensors = {};
  };

  Result<std::vector<OfShard>> Bring(std::span<const float> sink_logits) const {
    std::vector<OfShard> of(staged.size());
    std::vector<std::vector<const pjrt::Buffer*>> args(of.size());
    for (size_t d = 0; d < of.size(); ++d) {
      const auto device = static_cast<int64_t>(d);
      std::map<std::string, const pjrt::Buffer*> named;
      of[d].lent.reserve(staged[d].size());
      for (const Staged& one : staged[d]) {
        const pjrt::TensorType type{
            ElementOfQ(), {spec.shape.batch, one.heads, spec.tokens, one.token_bytes / BytesOf(spec.shape.dtype)}};
        of[d].lent.push_back(TESSERA_TRY(client.Lend(type, one.room.bytes, device)));
        named[one.name] = &of[d].lent.back().buffer;
        of[d].tensors[one.name] = {type, one.room.bytes};
      }
      for (const auto& [name, buffer] : held[d]) named[name] = &buffer;
      for (const stablehlo::NamedType& input : bring_inputs) args[d].push_back(named.at(input.name));
      if (sink_logits.empty()) continue;
      const auto heads = static_cast<size_t>(walked.shape.num_q_heads);
      const std::span<const float> own = sink_logits.subspan(IsHeads() ? d * heads : 0, heads);
      of[d].sinks.assign(own.begin(), own.end());
      of[d].tensors["sink_logits"] = {{pjrt::ElementType::kF32, {walked.shape.num_q_heads}},
                                      std::as_bytes(std::span(of[d].sinks))};
    }
    std::vector<pjrt::Launched> launched = TESSERA_TRY(bring->ExecuteOnAll(args));
    for (size_t d = 0; d < of.size(); ++d) {
      TESSERA_TRY(launched[d].done.Await());
      of[d].brought = std::move(launched[d].outputs);
      const char* const names[] = {"k", "v", "q"};
      for (size_t i = 0; i < of[d].brought.size(); ++i) {
        const pjrt::Buffer& buffer = of[d].brought[i];
        TESSERA_TRY(buffer.Await());
        const std::span bytes(TESSERA_TRY(buffer.Address()), static_cast<size_t>(buffer.type().bytes()));
        of[d].tensors[names[i]] = {buffer.type(), bytes};
      }
    }
    return of;
  }
  pjrt::ElementType ElementOfQ() const { return walk->inputs()[0].type; }

  // A shard's tensors of this call on a stream's device.
  using Opened = std::map<std::string, pjrt::LentBuffer>;
  Status Open(const OfShard& of, int64_t stream, Opened& opened) const {
    for (const auto& [name, tensor] : of.tensors) {
      opened.emplace(name, TESSERA_TRY(walker.Lend(tensor.type, tensor.bytes, stream)));
    }
    return {};
  }

  // One part of a shard's rows, put where it belongs.
  Status Walk(const Opened& opened, int64_t stream, int64_t device, int64_t part, const CutOutputs& into) const {
    const auto number = static_cast<int32_t>(part);
    const pjrt::Buffer part_buffer =
        TESSERA_TRY(walker.Upload({pjrt::ElementType::kS32, {}}, std::as_bytes(std::span(&number, 1)), stream));
    const Opened& constants = lent[static_cast<size_t>(stream)][static_cast<size_t>(device)];
    std::vector<const pjrt::Buffer*> args;
    for (const stablehlo::NamedType& input : walk_inputs) {
      const auto constant = constants.find(input.name);
      args.push_back(input.name == "part"          ? &part_buffer
                     : constant != constants.end() ? &constant->second.buffer
                                                   : &opened.at(input.name).buffer);
    }
    const std::vector<pjrt::Buffer> results = TESSERA_TRY(walk->Execute(args, {.device = stream, .do_not_donate = {}}));
    TESSERA_TRY(results[0].Await());
    TESSERA_TRY(results[1].Await());
    const auto* o = reinterpret_cast<const float*>(TESSERA_TRY(results[0].Address()));
    const auto* lse = reinterpret_cast<const float*>(TESSERA_TRY(results[1].Address()));
    Place({o, lse}, device, part, into);
    return {};
  }

  struct Tiles {
    const float* o;
    const float* lse;
  };
  void Place(const Tiles& tiles, int64_t device, int64_t part, const CutOutputs& into) const {
    const Shape& s = plan->contract.shape;
    const stablehlo::ListShape& list = walked.Of(Direction::kForward);
    const stablehlo::PartRows rows = walked.RowsOf(Direction::kForward);
    const int64_t heads = walked.shape.num_q_heads;
    const int64_t first_head = IsHeads() ? device * heads : 0;
    const std::vector<int64_t>& tokens = given[static_cast<size_t>(device)];
    for (int64_t n = part * rows.per_part; n < std::min(rows.rows, (part + 1) * rows.per_part); ++n) {
      const int64_t place = n - part * rows.per_part;
      const int64_t b = n / list.rows / heads;
      const int64_t head = b * s.num_q_heads + first_head + n / list.rows % heads;
      const int64_t* own = tokens.data() + b * walked.shape.q_len + n % list.rows * list.tile_q;
      const int64_t end = std::min(list.tile_q, walked.shape.q_len - n % list.rows * list.tile_q);
      for (int64_t t = 0; t < end;) {
        int64_t count = 1;
        while (t + count < end && own[t + count] == own[t] + count && own[t] >= 0) ++count;
        if (own[t] >= 0) {
          const auto to = static_cast<size_t>(head * s.q_len + own[t]);
          const auto from = static_cast<size_t>(place * list.tile_q + t);
          std::copy_n(tiles.lse + from, count, into.lse.begin() + static_cast<int64_t>(to));
          Write({tiles.o + from * static_cast<size_t>(s.dim_v), static_cast<size_t>(count * s.dim_v)},
                into.o.data() + to * static_cast<size_t>(s.dim_v * BytesOf(s.dtype)));
        }
        t += count;
      }
    }
  }
  void Write(std::span<const float> from, std::byte* to) const {
    const DType dtype = plan->contract.shape.dtype;
    if (dtype == DType::kF32) {
      std::memcpy(to, from.data(), from.size_bytes());
      return;
    }
    for (size_t i = 0; i < from.size(); ++i) {
      const uint16_t bits = dtype == DType::kBf16 ? F32ToBf16(from[i]) : F32ToF16(from[i]);
      std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
    }
  }

  Status Forward(const WholeTensors& whole, std::span<const float> sink_logits, const CutOutputs& into) const {
    const Shape& s = plan->contract.shape;
    const auto rows = static_cast<size_t>(s.batch * s.num_q_heads * s.q_len);
    if (into.lse.size() != rows || into.o.size() != rows * static_cast<size_t>(s.dim_v * BytesOf(s.dtype))) {
      return Fail(ErrorCode::kTensorMismatch, "outputs are of another size", "o");
    }
    const size_t sinks = plan->contract.score.sink_logits ? static_cast<size_t>(s.num_q_heads) : 0;
    if (sink_logits.size() != sinks) {
      return Fail(ErrorCode::kTensorMismatch,
                  fmt::format("expected {} sink logits, found {}", sinks, sink_logits.size()), "sink_logits");
    }
    const std::lock_guard lock(mutex);
    TESSERA_TRY(Stage(whole));
    const std::vector<OfShard> of = TESSERA_TRY(Bring(sink_logits));
    std::vector<std::vector<std::optional<Opened>>> opened(lent.size());
    for (auto& of_stream : opened) of_stream.resize(of.size());
    std::atomic<bool> has_failed = false;
    std::vector<Status> done(units.size());
    lanes::RunUnits(NumStreams(), static_cast<int64_t>(units.size()), [&](int64_t unit, int64_t stream) {
      if (has_failed) return;
      const auto [device, part] = units[static_cast<size_t>(unit)];
      const auto shard = static_cast<size_t>(device);
      std::optional<Opened>& own = opened[static_cast<size_t>(stream)][shard];
      Status& ended = done[static_cast<size_t>(unit)];
      if (!own) ended = Open(of[shard], stream, own.emplace());
      if (ended) ended = Walk(*own, stream, device, part, into);
      if (!ended) has_failed = true;
    });
    for (Status& one : done) TESSERA_TRY(std::move(one));
    return {};
  }
};

Result<CutCall> CutCall::Make(pjrt::Client& client, std::shared_ptr<const ContextPlan> plan, int64_t threads,
                              const std::map<std::string, pjrt::OptionValue>& flags, pjrt::Client* walker) {
  if (static_cast<int64_t>(client.devices().size()) < plan->shards) {
    return Fail(ErrorCode::kMeshDevices,
                fmt::format("{} shards need as many devices, and there are {}", plan->shards, client.devices().size()),
                "devices");
  }
  auto state = std::unique_ptr<State>(new State{.client = client,
                                                .walker = walker != nullptr ? *walker : client,
                                                .plan = std::move(plan),
                                                .threads = std::max<int64_t>(threads, 1)});
  TESSERA_TRY(state->Compile(flags));
  TESSERA_TRY(state->Hold());
  return CutCall(std::move(state));
}

CutCall::CutCall(std::unique_ptr<State> state) : state_(std::move(state)) {}
CutCall::CutCall(CutCall&&) noexcept = default;
CutCall& CutCall::operator=(CutCall&&) noexcept = default;
CutCall::~CutCall() = default;

Status CutCall::Forward(const WholeTensors& whole, std::span<const float> sink_logits, const CutOutputs& into) const {
  return state_->Forward(whole, sink_logits, into);
}

Result<std::vector<CarriedCollective>> CutCall::Carried() const {
  return CarriedBy(TESSERA_TRY(state_->bring->Optimized()).collective_calls, state_->spec, *state_->plan);
}
int64_t CutCall::parts() const { return static_cast<int64_t>(state_->units.size()); }
const ContextPlan& CutCall::plan() const { return *state_->plan; }

}  // namespace tessera::shard
