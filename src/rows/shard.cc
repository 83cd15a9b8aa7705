// A shard's file: safetensors, whose metadata has the schema's version and a digest of the tensors.
#include "rows/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "base/spelling.h"
#include "base/try.h"
#include "rows/limits.h"

namespace tessera {
namespace {

constexpr const char* kFormat = "tessera rows";
constexpr const char* kChunkNames[] = {"token_chunk_starts", "token_chunk_ends", "token_chunk_kinds",
                                       "token_chunk_dep_levels"};

template <class T>
std::string_view BytesOf(const std::vector<T>& list, size_t count) {
  return {reinterpret_cast<const char*>(list.data()), count * sizeof(T)};
}

tl::unexpected<Error> Invalid(const std::string& path, std::string why) {
  return Fail(ErrorCode::kRowsInvalid, std::move(why), path);
}

// The tensors of a file by name, each looked at once for type, shape and alignment.
class Tensors {
 public:
  Tensors(const TensorFileView& view, const std::string& path) : view_(view), path_(path) {}

  // Left as it is where the file has no such tensor; a negative dimension is any.
  template <class T>
  Status Find(const std::string& name, ElementType type, std::vector<int64_t> shape, bool is_required,
              std::span<const T>& out) const {
    for (const TensorBytes& tensor : view_.tensors) {
      if (tensor.name != name) continue;
      bool fits = tensor.type == type && tensor.shape.size() == shape.size();
      for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] < 0 || shape[i] == tensor.shape[i];
      if (!fits)
        return Invalid(path_,
                       fmt::format("column {} must be {} of shape [{}]", name, ToText(type), fmt::join(shape, ", ")));
      if (reinterpret_cast<uintptr_t>(tensor.bytes.data()) % alignof(T) != 0)
        return Invalid(path_, fmt::format("column {} is not aligned to its elements", name));
      out = {reinterpret_cast<const T*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(T)};
      return {};
    }
    if (is_required) return Invalid(path_, fmt::format("column {} is missing", name));
    return {};
  }

 private:
  const TensorFileView& view_;
  const std::string& path_;
};

std::optional<int64_t> NumberIn(const TensorMetadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  int64_t number = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto read = std::from_chars(found->second.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional(number) : std::nullopt;
}

// Ragged lists: begins ascend from 0 to the number of pairs.
Status CheckBegins(const std::string& path, const char* name, std::span<const int64_t> begins, size_t numbers) {
  bool is_good = !begins.empty() && begins.front() == 0 && begins.back() == static_cast<int64_t>(numbers / 2);
  for (size_t i = 1; is_good && i < begins.size(); ++i) is_good = begins[i - 1] <= begins[i];
  if (!is_good) return Invalid(path, fmt::format("column {} does not ascend from 0 to the number of edges", name));
  return {};
}

}  // namespace

std::string DigestOf(const std::vector<TensorBytes>& tensors) {
  std::vector<const TensorBytes*> order;
  for (const TensorBytes& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  Hasher hasher;
  for (const TensorBytes* pointer : order) {
    const TensorBytes& tensor = *pointer;
    hasher.Text(tensor.name);
    hasher.Text(ToText(tensor.type));
    hasher.Int(static_cast<int64_t>(tensor.shape.size()));
    for (const int64_t length : tensor.shape) hasher.Int(length);
    hasher.Bytes(tensor.bytes.data(), tensor.bytes.size());
  }
  return Hex(hasher.Finish());
}

std::string ToShard(const PackedRows& rows, const PackOptions& options) {
  const int64_t width = rows.row_tokens;
  const auto count = static_cast<size_t>(rows.rows);
  const auto cells = static_cast<size_t>(rows.rows * width);
  std::vector<int64_t> pack_ids(count);
  for (size_t i = 0; i < count; ++i) pack_ids[i] = rows.first_pack_id + static_cast<int64_t>(i);
  std::vector<TensorBytes> tensors;
  const auto add = [&](std::string name, ElementType type, std::vector<int64_t> shape, std::string_view bytes) {
    tensors.push_back({std::move(name), type, std::move(shape), bytes});
  };
  add("pack_id", ElementType::kI64, {rows.rows}, BytesOf(pack_ids, count));
  std::array<std::vector<int32_t>, 4> chunks;
  if (rows.has_chunks) {
    add("token_call_edge_begins", ElementType::kI64, {rows.rows + 1}, BytesOf(rows.call_begins, count + 1));
    add("token_type_edge_begins", ElementType::kI64, {rows.rows + 1}, BytesOf(rows.type_begins, count + 1));
  }
  add("input_ids", ElementType::kI32, {rows.rows, width}, BytesOf(rows.input_ids, cells));
  add("target_ids", ElementType::kI32, {rows.rows, width}, BytesOf(rows.target_ids, cells));
  add("doc_ids", ElementType::kI32, {rows.rows, width}, BytesOf(rows.doc_ids, cells));
  add("valid_token_count", ElementType::kI32, {rows.rows}, BytesOf(rows.valid_token_count, count));
  add("num_docs", ElementType::kI32, {rows.rows}, BytesOf(rows.num_docs, count));
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    if (!rows.has_column[c]) continue;
    add(std::string(TokenColumns()[c].name), ElementType::kI32, {rows.rows, width}, BytesOf(rows.columns[c], cells));
  }
  if (rows.has_chunks) {
    const auto places = static_cast<size_t>(rows.rows * ChunkWidth(width));
    for (std::vector<int32_t>& list : chunks) list.resize(places);
    for (size_t i = 0; i < places; ++i) {
      const Chunk& chunk = rows.chunks[i];
      chunks[0][i] = chunk.begin;
      chunks[1][i] = chunk.end;
      chunks[2][i] = chunk.kind;
      chunks[3][i] = chunk.dep_level;
    }
    for (size_t i = 0; i < 4; ++i)
      add(kChunkNames[i], ElementType::kI32, {rows.rows, ChunkWidth(width)}, BytesOf(chunks[i], places));
    add("token_call_edges", ElementType::kI32, {static_cast<int64_t>(rows.call_edges.size()), 2},
        BytesOf(rows.call_edges, rows.call_edges.size()));
    add("token_type_edges", ElementType::kI32, {static_cast<int64_t>(rows.type_edges.size()), 2},
        BytesOf(rows.type_edges, rows.type_edges.size()));
  }
  const auto ids = static_cast<size_t>(rows.rows * kPlatformIds);
  for (size_t i = 0; i < ids; ++i) {
    if (rows.platform_ids[i] == 0) continue;
    add("platform_ids", ElementType::kI32, {rows.rows, kPlatformIds}, BytesOf(rows.platform_ids, ids));
    break;
  }
  add("loss_mask", ElementType::kI8, {rows.rows, width}, BytesOf(rows.loss_mask, cells));
  TensorMetadata metadata = {{"format", kFormat},
                             {"schema_version", std::to_string(kRowsSchemaVersion)},
                             {"digest", DigestOf(tensors)},
                             {"packer", std::string(ToText(options.packer))},
                             {"platform_vocab", std::to_string(kPlatformVocab)},
                             {"platform_cap", std::to_string(kPlatformIds)}};
  if (options.documents.vocab) {
    metadata["vocab"] = std::to_string(*options.documents.vocab);
    metadata["vocab_multiple"] = std::to_string(kVocabMultiple);
    metadata["padded_vocab"] = std::to_string(PaddedVocab(*options.documents.vocab));
  }
  if (!options.tokenizer.empty()) metadata["tokenizer"] = options.tokenizer;
  return ToSafetensors(std::move(tensors), metadata);
}

Result<RowShard> RowShard::Open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->file = TESSERA_TRY(MappedFile::Open(path));
  state->view = TESSERA_TRY(ViewSafetensors(state->file.bytes(), path));
  const TensorMetadata& metadata = state->view.metadata;
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second != kFormat)
    return Invalid(path, "the file does not say that it holds rows");
  const std::optional<int64_t> version = NumberIn(metadata, "schema_version");
  if (!version) return Invalid(path, "the file does not say which schema_version its rows have");
  if (*version < 1 || *version > kRowsSchemaVersion)
    return Invalid(
        path, fmt::format("its rows have schema_version {}; this program knows 1 to {}", *version, kRowsSchemaVersion));
  const auto digest = metadata.find("digest");
  if (digest == metadata.end() || !IsHex(digest->second)) return Invalid(path, "the file has no digest");
  state->digest = digest->second;
  state->vocab = NumberIn(metadata, "vocab");
  if (const auto it = metadata.find("tokenizer"); it != metadata.end()) state->tokenizer = it->second;
  if (const auto it = metadata.find("packer"); it != metadata.end()) state->packer = it->second;

  const Tensors tensors(state->view, path);
  TESSERA_TRY(tensors.Find("pack_id", ElementType::kI64, {-1}, true, state->pack_id));
  state->rows = static_cast<int64_t>(state->pack_id.size());
  const int64_t rows = state->rows;
  if (rows == 0) return Invalid(path, "it has no rows");
  state->first_pack_id = state->pack_id[0];
  TESSERA_TRY(tensors.Find("input_ids", ElementType::kI32, {rows, -1}, true, state->input_ids));
  const int64_t width = static_cast<int64_t>(state->input_ids.size()) / rows;
  state->row_tokens = width;
  if (width < 1 || width > rows::kMaxRowTokens)
    return Invalid(path, fmt::format("its rows have {} tokens; 1 to {} are allowed", width, rows::kMaxRowTokens));
  TESSERA_TRY(tensors.Find("target_ids", ElementType::kI32, {rows, width}, true, state->target_ids));
  TESSERA_TRY(tensors.Find("loss_mask", ElementType::kI8, {rows, width}, true, state->loss_mask));
  TESSERA_TRY(tensors.Find("doc_ids", ElementType::kI32, {rows, width}, true, state->doc_ids));
  TESSERA_TRY(tensors.Find("valid_token_count", ElementType::kI32, {rows}, true, state->valid_token_count));
  TESSERA_TRY(tensors.Find("num_docs", ElementType::kI32, {rows}, true, state->num_docs));
  for (size_t c = 0; c < kNumTokenColumns; ++c)
    TESSERA_TRY(
        tensors.Find(std::string(TokenColumns()[c].name), ElementType::kI32, {rows, width}, false, state->columns[c]));
  TESSERA_TRY(tensors.Find("platform_ids", ElementType::kI32, {rows, kPlatformIds}, false, state->platform_ids));
  TESSERA_TRY(tensors.Find(kChunkNames[0], ElementType::kI32, {rows, ChunkWidth(width)}, false, state->chunks[0]));
  const bool has_chunks = !state->chunks[0].empty();
  for (size_t i = 1; i < 4 && has_chunks; ++i)
    TESSERA_TRY(tensors.Find(kChunkNames[i], ElementType::kI32, {rows, ChunkWidth(width)}, true, state->chunks[i]));
  if (has_chunks) {
    TESSERA_TRY(tensors.Find("token_call_edge_begins", ElementType::kI64, {rows + 1}, true, state->call_begins));
    TESSERA_TRY(tensors.Find("token_call_edges", ElementType::kI32, {-1, 2}, true, state->call_edges));
    TESSERA_TRY(tensors.Find("token_type_edge_begins", ElementType::kI64, {rows + 1}, true, state->type_begins));
    TESSERA_TRY(tensors.Find("token_type_edges", ElementType::kI32, {-1, 2}, true, state->type_edges));
    TESSERA_TRY(CheckBegins(path, "token_call_edge_begins", state->call_begins, state->call_edges.size()));
    TESSERA_TRY(CheckBegins(path, "token_type_edge_begins", state->type_begins, state->type_edges.size()));
  }
  return RowShard(std::move(state));
}

RowShard::RowShard(std::unique_ptr<State> state) : state_(std::move(state)) {}
RowShard::RowShard(RowShard&&) noexcept = default;
RowShard& RowShard::operator=(RowShard&&) noexcept = default;
RowShard::~RowShard() = default;

int64_t RowShard::rows() const { return state_->rows; }
int64_t RowShard::row_tokens() const { return state_->row_tokens; }
int64_t RowShard::first_pack_id() const { return state_->first_pack_id; }
const std::string& RowShard::digest() const { return state_->digest; }
std::optional<int64_t> RowShard::vocab() const { return state_->vocab; }
const std::string& RowShard::tokenizer() const { return state_->tokenizer; }
const std::string& RowShard::packer() const { return state_->packer; }
std::span<const int32_t> RowShard::input_ids() const { return state_->input_ids; }
std::span<const int32_t> RowShard::target_ids() const { return state_->target_ids; }
std::span<const int8_t> RowShard::loss_mask() const { return state_->loss_mask; }
std::span<const int32_t> RowShard::doc_ids() const { return state_->doc_ids; }
std::span<const int32_t> RowShard::valid_token_count() const { return state_->valid_token_count; }
std::span<const int32_t> RowShard::num_docs() const { return state_->num_docs; }
std::span<const int32_t> RowShard::column(TokenColumn column) const {
  return state_->columns[static_cast<size_t>(column)];
}
std::span<const int32_t> RowShard::chunk_starts() const { return state_->chunks[0]; }
std::span<const int32_t> RowShard::chunk_ends() const { return state_->chunks[1]; }
std::span<const int32_t> RowShard::chunk_kinds() const { return state_->chunks[2]; }
std::span<const int32_t> RowShard::chunk_dep_levels() const { return state_->chunks[3]; }

namespace {

// Pairs of numbers in a file are edges in memory.
static_assert(sizeof(ChunkEdge) == 2 * sizeof(int32_t) && alignof(ChunkEdge) == alignof(int32_t));

std::span<const ChunkEdge> EdgesOf(std::span<const int64_t> begins, std::span<const int32_t> numbers, int64_t row) {
  if (begins.empty()) return {};
  const auto at = static_cast<size_t>(row);
  const auto* edges = reinterpret_cast<const ChunkEdge*>(numbers.data());
  return {edges + begins[at], static_cast<size_t>(begins[at + 1] - begins[at])};
}

}  // namespace

std::span<const ChunkEdge> RowShard::call_edges(int64_t row) const {
  return EdgesOf(state_->call_begins, state_->call_edges, row);
}
std::span<const ChunkEdge> RowShard::type_edges(int64_t row) const {
  return EdgesOf(state_->type_begins, state_->type_edges, row);
}
std::span<const int32_t> RowShard::platform_ids(int64_t row) const {
  if (state_->platform_ids.empty()) return {};
  return state_->platform_ids.subspan(static_cast<size_t>(row * kPlatformIds), static_cast<size_t>(kPlatformIds));
}

}  // namespace tessera
