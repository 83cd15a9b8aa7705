// See call.h.
#include "lanes/xla/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

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

int64_t Workers(const stablehlo::ProgramSpec& spec, int64_t threads) { return std::min(threads, spec.parts); }

}  // namespace

int64_t StagingBytes(const stablehlo::ProgramSpec& spec, Pass pass, int64_t threads) {
  int64_t tokens = 0;
  for (const Direction direction : DirectionsOf(pass)) {
    tokens = std::max(tokens, spec.RowsOf(direction).per_part * TileOf(spec, direction));
  }
  return Workers(spec, threads) *
         stablehlo::CeilTo(tokens * std::max(spec.shape.dim_qk, spec.shape.dim_v) * 4, kWorkspaceAlignment);
}

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

Result<int64_t> PassCall::Run(std::span<const int64_t> parts, int64_t threads, std::span<std::byte> workspace) const {
  const Result<Stream> first = OpenFirst();
  if (!first) return tl::unexpected(first.error());
  const size_t staging_bytes =
      workspace.size() / static_cast<size_t>(Workers(spec_, threads)) / kWorkspaceAlignment * kWorkspaceAlignment;
  const int64_t num_streams = NumStreams(threads);
  std::vector<std::optional<Stream>> beside(static_cast<size_t>(num_streams));  // and gone before the first
  const auto stream_of = [&](int64_t worker) -> Result<const Stream*> {
    if (worker == 0) return &*first;
    std::optional<Stream>& own = beside[static_cast<size_t>(worker)];
    if (own) return &*own;
    Result<Stream> opened = OpenBeside(*first, worker);
    if (!opened) return tl::unexpected(opened.error());
    return &own.emplace(std::move(*opened));
  };
  std::atomic<bool> has_failed = false;
  std::vector<Result<int64_t>> tiles(parts.size(), 0);
  RunUnits(num_streams, spec_.parts, [&](int64_t unit, int64_t worker) {
    if (has_failed) return;
    const auto i = static_cast<size_t>(unit);
    const auto w = static_cast<size_t>(worker);
    const Result<const Stream*> stream = stream_of(worker);
    tiles[i] = stream ? RunPart(parts[i], **stream, workspace.subspan(w * staging_bytes, staging_bytes))
                      : tl::unexpected(stream.error());
    if (!tiles[i]) has_failed = true;
  });
  int64_t sum = 0;
  for (const Result<int64_t>& part : tiles) {
    if (!part) return part;
    sum += *part;
  }
  return sum;
}

// One program has several devices' use where it has parts: on a CPU, whose devices are all this machine.
int64_t PassCall::NumStreams(int64_t threads) const {
  return std::min(Workers(spec_, threads), static_cast<int64_t>(session_.client->devices().size()));
}

Result<PassCall::Stream> PassCall::OpenFirst() const {
  Stream stream{session_.device, {}, {}};
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    if (program_.inputs[i].name == kPart) {
      stream.shared.emplace_back();
      continue;
    }
    Result<pjrt::LentBuffer> buffer = Lend(program_.inputs[i].name, program_.executable.inputs()[i]);
    if (!buffer) return tl::unexpected(buffer.error());
    stream.Add(std::move(*buffer));
  }
  return stream;
}

// Another device of this machine, with the operands where the first has them.
Result<PassCall::Stream> PassCall::OpenBeside(const Stream& first, int64_t number) const {
  const auto num_devices = static_cast<int64_t>(session_.client->devices().size());
  Stream stream{(first.device + number) % num_devices, {}, {}};
  for (const pjrt::Buffer& original : first.shared) {
    if (original.raw() == nullptr) {
      stream.shared.emplace_back();
      continue;
    }
    if (Status ok = original.Await(); !ok) return tl::unexpected(ok.error());
    const Result<const std::byte*> at = original.Address();
    if (!at) return tl::unexpected(at.error());
    const std::span<const std::byte> bytes(*at, static_cast<size_t>(original.type().bytes()));
    Result<pjrt::LentBuffer> buffer = session_.client->Lend(original.type(), bytes, stream.device);
    if (!buffer) return tl::unexpected(buffer.error());
    stream.Add(std::move(*buffer));
  }
  return stream;
}

Result<pjrt::LentBuffer> PassCall::Lend(const std::string& name, const pjrt::TensorType& type) const {
  if (const auto it = tensors_.find(name); it != tensors_.end()) {
    return LendTensor(*session_.client, *it->second.ref, it->second.axes, session_.device);
  }
  const auto it = bytes_.find(name);
  if (it == bytes_.end()) {
    return Fail(ErrorCode::kProgramMismatch, fmt::format("nothing was given for the program's operand {}", name));
  }
  return session_.client->Lend(type, it->second, session_.device);
}

Status PassCall::Fetch(const pjrt::Buffer& buffer, int64_t part, const PassOutput& output,
                       std::span<std::byte> staging) const {
  const stablehlo::PartRows rows = spec_.RowsOf(output.direction);
  const int64_t first = part * rows.per_part;
  const TilesAt at{.first_row = first,
                   .num_rows = std::min(rows.per_part, rows.rows - first),
                   .rows_per_head = output.is_per_row ? rows.rows : spec_.Of(output.direction).rows,
                   .tokens = output.is_per_row ? 1 : TileOf(spec_, output.direction)};
  if (at.num_rows <= 0) return {};
  const auto num_bytes = static_cast<size_t>(buffer.type().bytes());
  std::byte* place = at.num_rows == rows.per_part ? PlaceOf(at, output.into, output.axes) : nullptr;
  if (place != nullptr) return buffer.Download({place, num_bytes});
  if (Status ok = buffer.Download(staging.first(num_bytes)); !ok) return ok;
  PlaceTiles(staging.data(), at, output.into, output.axes);
  return {};
}

Result<int64_t> PassCall::RunPart(int64_t part, const Stream& stream, std::span<std::byte> staging) const {
  const auto number = static_cast<int32_t>(part);
  const Result<pjrt::Buffer> part_buffer =
      session_.client->Upload({pjrt::ElementType::kS32, {}}, std::as_bytes(std::span(&number, 1)), stream.device);
  if (!part_buffer) return tl::unexpected(part_buffer.error());
  std::vector<const pjrt::Buffer*> args;
  for (size_t i = 0; i < stream.shared.size(); ++i) {
    args.push_back(stream.shared[i].raw() == nullptr ? &*part_buffer : &stream.shared[i]);
  }
  const Result<std::vector<pjrt::Buffer>> results =
      program_.executable.Execute(args, {.device = stream.device, .do_not_donate = {}});
  if (!results) return tl::unexpected(results.error());
  const auto result = [&](std::string_view name) -> const pjrt::Buffer& {
    size_t i = 0;
    while (program_.outputs[i].name != name) ++i;
    return (*results)[i];
  };
  for (const PassOutput& output : outputs_) {
    if (output.into.data == nullptr) continue;
    if (Status ok = Fetch(result(output.name), part, output, staging); !ok) return tl::unexpected(ok.error());
  }
  int32_t tiles = 0;
  if (Status ok = result("tiles").Download(std::as_writable_bytes(std::span(&tiles, 1))); !ok) {
    return tl::unexpected(ok.error());
  }
  return tiles;
}

}  // namespace tessera::lanes::xla
