// See call.h.
#include "lanes/xla/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "base/math.h"
#include "base/try.h"
#include "lanes/workers.h"
#include "lanes/xla/stablehlo/tiles.h"
#include "lanes/xla/transfer.h"

namespace tessera::lanes::xla {
namespace {

constexpr std::string_view kPart = "part";

std::vector<Direction> DirectionsOf(Pass pass) {
  if (pass == Pass::kForward) return {Direction::kForward};
  return {Direction::kDq, Direction::kDkv};
}

// Tokens of a tile along the rows of a worklist.
int64_t TileOf(const stablehlo::ProgramSpec& spec, Direction direction) {
  const stablehlo::ListShape& list = spec.Of(direction);
  return direction == Direction::kDkv ? list.tile_kv : list.tile_q;
}

}  // namespace

std::vector<int64_t> HeaviestFirst(const stablehlo::ProgramSpec& spec, const PlanView& plan, Pass pass) {
  std::vector<int64_t> tiles(static_cast<size_t>(spec.parts), 0);
  const Shape& s = spec.shape;
  for (const Direction direction : DirectionsOf(pass)) {
    const Worklist& list = plan.Of(direction);
    const auto rows_per_head = static_cast<int64_t>(list.rows_per_mask);
    const int64_t per_part = spec.RowsOf(direction).per_part;
    const int64_t group = direction == Direction::kDkv ? s.num_q_heads / s.num_kv_heads : 1;
    for (int64_t pair = 0; pair < s.batch * s.num_q_heads; ++pair) {
      const int64_t mask = plan.mask_of[static_cast<size_t>(pair)];
      for (int64_t row = 0; row < rows_per_head; ++row) {
        const int64_t n = pair / group * rows_per_head + row;
        tiles[static_cast<size_t>(n / per_part)] +=
            static_cast<int64_t>(list.Row(static_cast<size_t>(mask * rows_per_head + row)).size());
      }
    }
  }
  std::vector<int64_t> parts(tiles.size());
  std::iota(parts.begin(), parts.end(), 0);
  std::stable_sort(parts.begin(), parts.end(),
                   [&](int64_t a, int64_t b) { return tiles[static_cast<size_t>(a)] > tiles[static_cast<size_t>(b)]; });
  return parts;
}

Result<std::unique_ptr<BoundPass>> BoundPass::Make(Parts parts) {
  std::unique_ptr<BoundPass> bound(new BoundPass(std::move(parts)));
  TESSERA_TRY(bound->Hold());
  return bound;
}

// What no call changes goes to every device that will run parts: the plan's tables, scale and softcap. One program has
// several devices' use where it has parts, on a CPU, whose devices are all this machine.
Status BoundPass::Hold() {
  const auto num_devices = static_cast<int64_t>(parts_.session.client->devices().size());
  num_streams_ = std::min({parts_.threads, parts_.spec.parts, num_devices});
  const auto keep = [&](std::string_view name, std::span<const std::byte> bytes) {
    constants_.emplace(name, std::vector<std::byte>(bytes.begin(), bytes.end()));
  };
  parts_.tables.erase(std::string(kPart));  // which each call of a part brings
  for (const auto& [name, table] : parts_.tables) keep(name, std::as_bytes(std::span(table)));
  const auto scale = static_cast<float>(parts_.score.scale);
  const auto softcap = static_cast<float>(parts_.score.softcap);
  keep("scale", std::as_bytes(std::span(&scale, 1)));
  keep("softcap", std::as_bytes(std::span(&softcap, 1)));
  parts_.tables.clear();
  const CompiledPass& program = *parts_.found.program;
  held_.resize(static_cast<size_t>(num_streams_));
  for (int64_t stream = 0; stream < num_streams_; ++stream) {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      std::unique_ptr<pjrt::LentBuffer>& held = held_[static_cast<size_t>(stream)].emplace_back();
      const auto constant = constants_.find(program.inputs[i].name);
      if (constant == constants_.end()) continue;
      held = std::make_unique<pjrt::LentBuffer>(
          TESSERA_TRY(parts_.session.client->Lend(program.executable.inputs()[i], constant->second, Device(stream))));
    }
  }
  return {};
}

int64_t BoundPass::Device(int64_t stream) const {
  return (parts_.session.device + stream) % static_cast<int64_t>(parts_.session.client->devices().size());
}

int64_t BoundPass::StagingBytes() const {
  const stablehlo::ProgramSpec& spec = parts_.spec;
  int64_t tokens = 0;
  for (const OutputForm& output : parts_.form->outputs) {
    tokens = std::max(tokens, spec.RowsOf(output.direction).per_part * TileOf(spec, output.direction));
  }
  return num_streams_ *
         RoundUp(tokens * std::max(spec.shape.dim_qk, spec.shape.dim_v) * 4, static_cast<int64_t>(kWorkspaceAlignment));
}

Result<int64_t> BoundPass::Run(const PassTensors& tensors, std::span<std::byte> staging,
                               std::atomic<int64_t>* tiles_done) const {
  const Stream first = TESSERA_TRY(OpenFirst(tensors));
  const size_t staging_bytes = static_cast<size_t>(StagingBytes() / num_streams_);
  std::vector<std::optional<Stream>> beside(static_cast<size_t>(num_streams_));
  // Opened by the thread that is first to need it.
  const auto stream_of = [&](int64_t worker) -> Result<const Stream*> {
    if (worker == 0) return &first;
    std::optional<Stream>& own = beside[static_cast<size_t>(worker)];
    if (!own) own.emplace(TESSERA_TRY(OpenBeside(first, worker)));
    return &*own;
  };
  std::atomic<bool> has_failed = false;
  std::vector<Result<int64_t>> tiles(parts_.order.size(), 0);
  RunUnits(num_streams_, parts_.spec.parts, [&](int64_t unit, int64_t worker) {
    if (has_failed) return;
    const auto i = static_cast<size_t>(unit);
    const auto w = static_cast<size_t>(worker);
    const Result<const Stream*> stream = stream_of(worker);
    tiles[i] = stream ? RunPart(parts_.order[i], **stream, tensors, staging.subspan(w * staging_bytes, staging_bytes))
                      : tl::unexpected(stream.error());
    if (!tiles[i]) {
      has_failed = true;
    } else if (tiles_done != nullptr) {
      tiles_done->fetch_add(*tiles[i], std::memory_order_relaxed);
    }
  });
  int64_t sum = 0;
  for (const Result<int64_t>& part : tiles) {
    if (!part) return part;
    sum += *part;
  }
  return sum;
}

Result<BoundPass::Stream> BoundPass::OpenFirst(const PassTensors& tensors) const {
  const CompiledPass& program = *parts_.found.program;
  Stream stream{.device = Device(0), .released = {}, .sent = {}, .operands = {}};
  stream.sent.reserve(program.inputs.size());
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const std::string& name = program.inputs[i].name;
    if (held_[0][i] != nullptr) {
      stream.operands.push_back(&held_[0][i]->buffer);
      continue;
    }
    if (name == kPart) {
      stream.operands.push_back(nullptr);
      continue;
    }
    const auto tensor = tensors.find(name);
    if (tensor == tensors.end()) {
      return Fail(ErrorCode::kProgramMismatch, fmt::format("nothing was given for the program's operand {}", name));
    }
    const pjrt::TensorType& type = program.executable.inputs()[i];
    const TensorRef& ref = tensor->second.ref;
    const bool is_flat = type.dims.size() < 4;  // row statistics and sink logits, which are dense
    pjrt::LentBuffer lent =
        TESSERA_TRY(is_flat ? parts_.session.client->Lend(type, std::span(ref.data, static_cast<size_t>(type.bytes())),
                                                          stream.device)
                            : LendTensor(*parts_.session.client, ref, tensor->second.axes, stream.device));
    stream.released.push_back(std::move(lent.released));
    stream.sent.push_back(std::move(lent.buffer));
    stream.operands.push_back(&stream.sent.back());
  }
  return stream;
}

// Another device of this machine, with the call's tensors where the first has them.
Result<BoundPass::Stream> BoundPass::OpenBeside(const Stream& first, int64_t number) const {
  Stream stream{.device = Device(number), .released = {}, .sent = {}, .operands = {}};
  stream.sent.reserve(first.operands.size());
  const auto& held = held_[static_cast<size_t>(number)];
  for (size_t i = 0; i < first.operands.size(); ++i) {
    if (held[i] != nullptr || first.operands[i] == nullptr) {
      stream.operands.push_back(held[i] != nullptr ? &held[i]->buffer : nullptr);
      continue;
    }
    const pjrt::Buffer& original = *first.operands[i];
    TESSERA_TRY(original.Await());
    const std::byte* at = TESSERA_TRY(original.Address());
    const std::span<const std::byte> bytes(at, static_cast<size_t>(original.type().bytes()));
    pjrt::LentBuffer lent = TESSERA_TRY(parts_.session.client->Lend(original.type(), bytes, stream.device));
    stream.released.push_back(std::move(lent.released));
    stream.sent.push_back(std::move(lent.buffer));
    stream.operands.push_back(&stream.sent.back());
  }
  return stream;
}

Status BoundPass::Fetch(const pjrt::Buffer& buffer, int64_t part, const OutputForm& form, const PassTensor& into,
                        std::span<std::byte> staging) const {
  const stablehlo::ProgramSpec& spec = parts_.spec;
  const stablehlo::PartRows rows = spec.RowsOf(form.direction);
  const int64_t first = part * rows.per_part;
  const TilesAt at{.first_row = first,
                   .num_rows = std::min(rows.per_part, rows.rows - first),
                   .rows_per_head = form.is_per_row ? rows.rows : spec.Of(form.direction).rows,
                   .tokens = form.is_per_row ? 1 : TileOf(spec, form.direction)};
  if (at.num_rows <= 0) return {};
  const auto num_bytes = static_cast<size_t>(buffer.type().bytes());
  std::byte* place = at.num_rows == rows.per_part ? PlaceOf(at, into.ref, into.axes) : nullptr;
  if (place != nullptr) return buffer.Download({place, num_bytes});
  TESSERA_TRY(buffer.Download(staging.first(num_bytes)));
  PlaceTiles(staging.data(), at, into.ref, into.axes);
  return {};
}

Result<int64_t> BoundPass::RunPart(int64_t part, const Stream& stream, const PassTensors& tensors,
                                   std::span<std::byte> staging) const {
  const CompiledPass& program = *parts_.found.program;
  const auto number = static_cast<int32_t>(part);
  const pjrt::Buffer part_buffer = TESSERA_TRY(parts_.session.client->Upload(
      {pjrt::ElementType::kS32, {}}, std::as_bytes(std::span(&number, 1)), stream.device));
  std::vector<const pjrt::Buffer*> args = stream.operands;
  std::replace(args.begin(), args.end(), static_cast<const pjrt::Buffer*>(nullptr), &part_buffer);
  const std::vector<pjrt::Buffer> results =
      TESSERA_TRY(program.executable.Execute(args, {.device = stream.device, .do_not_donate = {}}));
  const auto result = [&](std::string_view name) -> const pjrt::Buffer& {
    size_t i = 0;
    while (program.outputs[i].name != name) ++i;
    return results[i];
  };
  for (const OutputForm& output : parts_.form->outputs) {
    const auto into = tensors.find(output.name);
    if (into == tensors.end() || into->second.ref.data == nullptr) continue;
    TESSERA_TRY(Fetch(result(output.name), part, output, into->second, staging));
  }
  int32_t tiles = 0;
  TESSERA_TRY(result("tiles").Download(std::as_writable_bytes(std::span(&tiles, 1))));
  return tiles;
}

}  // namespace tessera::lanes::xla
