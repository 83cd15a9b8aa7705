// Batches of the C interface: from text, and from arrays without any.
#include "tessera/batch.h"

#include <fmt/format.h>

#include <span>

#include "base/checked.h"
#include "capi/handles.h"
#include "capi/structs.h"

namespace tessera::capi {

std::shared_ptr<const Batch> BatchOf(const tessera_batch* batch) {
  if (batch == nullptr) return std::make_shared<const Batch>();
  batch->is_shared = true;
  return batch->batch;
}

}  // namespace tessera::capi

namespace {

using namespace tessera;        // NOLINT: the C functions below cannot be in the namespace
using namespace tessera::capi;  // NOLINT

enum class Side : uint8_t { kBoth, kQ, kKv };

// The caller's array, whose sizes multiply to a number of elements that memory can have.
Result<std::span<const int32_t>> ReadArray(const int32_t* values, std::span<const int64_t> sizes, std::string_view name,
                                           std::string_view where) {
  TESSERA_TRY(NotNull(values, name, where));
  int64_t count = 1;
  for (const int64_t size : sizes) {
    const std::optional<int64_t> product = size < 0 ? std::nullopt : CheckedMul(count, size);
    if (!product || *product > PTRDIFF_MAX / static_cast<int64_t>(sizeof(int32_t))) {
      return BadArgument(where, fmt::format("the sizes of {} are [{}]; numbers from 0 on expected, of an array that "
                                            "fits in memory",
                                            name, fmt::join(sizes, ", ")));
    }
    count = *product;
  }
  return std::span<const int32_t>(values, static_cast<size_t>(count));
}

Result<Side> ReadSide(int64_t side, std::string_view where) {
  return static_cast<Side>(TESSERA_TRY(ReadChoice(side, 3, {"", "side"}, "TESSERA_SIDE_BOTH, _Q or _KV", where)));
}

// What a setter writes to: the batch's own, or a copy where somebody else may have that too.
Batch& BatchToChange(tessera_batch& batch) {
  if (batch.is_shared.exchange(false)) batch.batch = std::make_shared<Batch>(*batch.batch);
  return *batch.batch;
}

struct RowsArgument {
  const int32_t* values;
  const int64_t* counts;
  int64_t rows;
  std::string_view name;
};

Result<IntRows> ReadRows(const RowsArgument& given, std::string_view where) {
  TESSERA_TRY(NotNull(given.values, given.name, where));
  TESSERA_TRY(NotNull(given.counts, "counts", where));
  if (given.rows < 0) return BadArgument(where, fmt::format("rows is {}; 0 or more expected", given.rows));
  IntRows out;
  const int32_t* next = given.values;
  for (int64_t row = 0; row < given.rows; ++row) {
    const std::span<const int32_t> values = TESSERA_TRY(ReadArray(next, {given.counts + row, 1}, given.name, where));
    out.emplace_back(values.begin(), values.end());
    next += given.counts[row];
  }
  return out;
}

std::vector<int64_t> Widen(std::span<const int32_t> values) { return {values.begin(), values.end()}; }

}  // namespace

int tessera_batch_parse(const char* json, tessera_batch** batch, tessera_error** error) {
  if (batch != nullptr) *batch = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    TESSERA_TRY(NotNull(json, "json", where));
    auto parsed = std::make_shared<Batch>(TESSERA_TRY(ParseBatch(json)));
    *batch = new tessera_batch{std::move(parsed)};
    return {};
  });
}

int tessera_batch_new(tessera_batch** batch, tessera_error** error) {
  if (batch != nullptr) *batch = nullptr;
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    *batch = new tessera_batch{std::make_shared<Batch>()};
    return {};
  });
}

void tessera_batch_free(tessera_batch* batch) { delete batch; }

int tessera_batch_set_doc_ids(tessera_batch* batch, int64_t side, const int32_t* ids, int64_t rows, int64_t len,
                              tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    const Side of = TESSERA_TRY(ReadSide(side, where));
    const std::span<const int32_t> values = TESSERA_TRY(ReadArray(ids, std::array{rows, len}, "ids", where));
    IdRows read{.rows = rows, .len = len, .values = {values.begin(), values.end()}};
    Batch& to = BatchToChange(*batch);
    (of == Side::kBoth ? to.doc_ids : of == Side::kQ ? to.q_doc_ids : to.kv_doc_ids) = std::move(read);
    return {};
  });
}

int tessera_batch_set_doc_lengths(tessera_batch* batch, int64_t side, const int32_t* lengths, const int64_t* counts,
                                  int64_t rows, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    const Side of = TESSERA_TRY(ReadSide(side, where));
    IntRows read = TESSERA_TRY(ReadRows({lengths, counts, rows, "lengths"}, where));
    Batch& to = BatchToChange(*batch);
    (of == Side::kBoth ? to.doc_lengths : of == Side::kQ ? to.q_doc_lengths : to.kv_doc_lengths) = std::move(read);
    return {};
  });
}

int tessera_batch_set_cu_seqlens(tessera_batch* batch, int64_t side, const int32_t* ends, const int64_t* counts,
                                 int64_t rows, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    const Side of = TESSERA_TRY(ReadSide(side, where));
    IntRows read = TESSERA_TRY(ReadRows({ends, counts, rows, "ends"}, where));
    Batch& to = BatchToChange(*batch);
    (of == Side::kBoth ? to.cu_seqlens : of == Side::kQ ? to.q_cu_seqlens : to.kv_cu_seqlens) = std::move(read);
    return {};
  });
}

int tessera_batch_set_valid_tokens(tessera_batch* batch, int64_t side, const int32_t* tokens, int64_t rows,
                                   tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    const Side of = TESSERA_TRY(ReadSide(side, where));
    std::vector<int64_t> read = Widen(TESSERA_TRY(ReadArray(tokens, std::array{rows}, "tokens", where)));
    Batch& to = BatchToChange(*batch);
    (of == Side::kBoth ? to.valid_tokens : of == Side::kQ ? to.q_valid_tokens : to.kv_valid_tokens) = std::move(read);
    return {};
  });
}

int tessera_batch_set_valid_slots(tessera_batch* batch, const int32_t* slots, int64_t rows, int64_t base_block_tokens,
                                  tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    std::vector<int64_t> read = Widen(TESSERA_TRY(ReadArray(slots, std::array{rows}, "slots", where)));
    Batch& to = BatchToChange(*batch);
    to.valid_slots = std::move(read);
    to.base_block_tokens = base_block_tokens;
    return {};
  });
}

int tessera_batch_set_picks(tessera_batch* batch, const int32_t* blocks, const int64_t* shape, int64_t rank,
                            int64_t block_tokens, tessera_error** error) {
  return Guard(__func__, error, [&, where = __func__]() -> Status {
    TESSERA_TRY(NotNull(batch, "batch", where));
    TESSERA_TRY(NotNull(shape, "shape", where));
    if (rank != 4) return BadArgument(where, fmt::format("rank is {}; 4 expected", rank));
    const std::span<const int64_t> sizes(shape, 4);
    const std::span<const int32_t> values = TESSERA_TRY(ReadArray(blocks, sizes, "blocks", where));
    Picks read{
        .block_tokens = block_tokens, .shape = {sizes.begin(), sizes.end()}, .blocks = {values.begin(), values.end()}};
    BatchToChange(*batch).picks = std::move(read);
    return {};
  });
}
