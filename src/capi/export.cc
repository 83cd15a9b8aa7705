// Exports of the C interface.
#include "tessera/export.h"

#include <fmt/format.h>

#include "capi/handles.h"
#include "capi/structs.h"

struct tessera_export {
  tessera::Export exported;
  struct Array {
    std::string name;
    std::string dtype;
    const tessera::Tensor* tensor = nullptr;  // null where the library has None
  };
  std::vector<Array> arrays;  // of `exported`, which stays where it is
};

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

Result<int64_t> ReadShards(int64_t value, std::string_view name, std::string_view where) {
  if (value < 0) return BadArgument(where, fmt::format("options->{} is {}; 0 or more expected", name, value));
  return value == 0 ? 1 : value;
}

Result<ExportOptions> ReadOptions(const tessera_export_options* given, std::string_view where) {
  ExportOptions out;
  if (given == nullptr) return out;
  const tessera_export_options options = TESSERA_TRY(ReadStruct(given, {"options", where}));
  const auto flag = [&](int64_t value, std::string_view name) {
    return ReadFlag(value, fmt::format("options->{}", name), where);
  };
  out.to = TESSERA_TRY(ParseLibrary(TextOr(options.library, "splash")));
  if (options.tile_q != 0 || options.tile_kv != 0) out.tile = TileSize{options.tile_q, options.tile_kv};
  out.direction = static_cast<Direction>(
      TESSERA_TRY(ReadChoice(options.direction, static_cast<int64_t>(kNumDirections), {"options->", "direction"},
                             "TESSERA_DIRECTION_FORWARD or _DKV", where)));
  out.store_tiles = TESSERA_TRY(flag(options.store_tiles, "store_tiles"));
  out.segments = static_cast<Segments>(TESSERA_TRY(
      ReadChoice(options.segments, 3, {"options->", "segments"}, "TESSERA_SEGMENTS_RUNTIME, _BAKED or _SKIP", where)));
  out.fixed_shapes = TESSERA_TRY(flag(options.fixed_shapes, "fixed_shapes"));
  out.widen_class = TESSERA_TRY(flag(options.widen_class, "widen_class"));
  out.head_shards = TESSERA_TRY(ReadShards(options.head_shards, "head_shards", where));
  out.q_shards = TESSERA_TRY(ReadShards(options.q_shards, "q_shards", where));
  out.kv_shards = TESSERA_TRY(ReadShards(options.kv_shards, "kv_shards", where));
  out.shrink = !TESSERA_TRY(flag(options.keep_empty, "keep_empty"));
  out.dynamic_grid = TESSERA_TRY(flag(options.dynamic_grid, "dynamic_grid"));
  if (TESSERA_TRY(flag(options.set_row, "set_row"))) {
    out.batch_row = options.row;
  } else if (options.row != 0) {
    return BadArgument(where, "options->row is given without options->set_row");
  }
  return out;
}

void ListArrays(tessera_export& handle) {
  const auto add = [&](const std::string& name, const Tensor* tensor) {
    handle.arrays.push_back({name, std::string(tensor == nullptr ? "" : ToText(tensor->type)), tensor});
  };
  for (const ExportArray& array : handle.exported.arrays) add(array.name, array.value ? &*array.value : nullptr);
  if (!handle.exported.segment_ids) return;
  add("q_segment_ids", &handle.exported.segment_ids->q);
  add("kv_segment_ids", &handle.exported.segment_ids->kv);
}

}  // namespace

int tessera_export_new(const tessera_contract* contract, const tessera_batch* batch,
                       const tessera_export_options* options, tessera_export** exported, tessera_error** error) {
  if (exported != nullptr) *exported = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(exported, "exported", where));
    TESSERA_TRY(NotNull(contract, "contract", where));
    const ExportOptions read = TESSERA_TRY(ReadOptions(options, where));
    const std::shared_ptr<const Batch> facts = BatchOf(batch);
    auto handle = std::make_unique<tessera_export>();
    handle->exported = TESSERA_TRY(MakeExport(*contract->contract, *facts, read));
    ListArrays(*handle);
    *exported = handle.release();
    return {};
  });
}

int tessera_export_json(const tessera_export* exported, char** json, tessera_error** error) {
  if (json != nullptr) *json = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(exported, "exported", where));
    TESSERA_TRY(NotNull(json, "json", where));
    *json = CopyText(ToJson(exported->exported));
    return {};
  });
}

size_t tessera_export_num_arrays(const tessera_export* exported) {
  return exported == nullptr ? 0 : exported->arrays.size();
}

int tessera_export_array(const tessera_export* exported, size_t index, tessera_array* array, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(exported, "exported", where));
    if (index >= exported->arrays.size()) {
      return BadArgument(where, fmt::format("index is {}; there are {} arrays", index, exported->arrays.size()));
    }
    const tessera_export::Array& from = exported->arrays[index];
    tessera_array out{};
    out.name = from.name.c_str();
    out.dtype = from.dtype.c_str();
    if (from.tensor != nullptr) {
      out.shape = from.tensor->shape.data();
      out.rank = static_cast<int64_t>(from.tensor->shape.size());
      out.data = from.tensor->bytes.data();
      out.num_bytes = from.tensor->bytes.size();
    }
    return WriteStruct(out, array, {"array", where});
  });
}

void tessera_export_free(tessera_export* exported) { delete exported; }
