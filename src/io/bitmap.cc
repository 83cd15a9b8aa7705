#include "io/bitmap.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "base/spelling.h"
#include "io/file.h"
#include "io/limits.h"
#include "io/npy.h"

namespace tessera {
namespace {

tl::unexpected<Error> Unusable(const std::string& path, std::string_view why) {
  return Fail(ErrorCode::kBitmapInvalid, fmt::format("the bitmap {} is unusable: {}", Excerpt(path), why));
}

}  // namespace

std::string BitmapDigest(const Bitmap& bitmap) {
  Hasher hasher;
  hasher.Int(bitmap.heads);
  hasher.Int(bitmap.q_len);
  hasher.Int(bitmap.kv_len);
  hasher.Bytes(bitmap.cells.data(), bitmap.cells.size());
  return Hex(hasher.Finish());
}

Result<std::shared_ptr<const Bitmap>> BitmapLoader::Load(const std::string& path) {
  if (const auto known = loaded_.find(path); known != loaded_.end()) return known->second;

  const std::filesystem::path full = std::filesystem::path(base_dir_) / path;
  std::error_code error;
  if (!std::filesystem::is_regular_file(full, error)) {
    return Unusable(path, fmt::format("expected a file at {}", Excerpt(full.string())));
  }
  Result<std::string> bytes = ReadFile(full.string(), kMaxBitmapBytes, [&](std::string_view head, int64_t size) {
    return CheckNpyHead(head, size, path);
  });
  if (!bytes) return Unusable(path, bytes.error().message);
  Result<NpyArray> array = ParseNpy(*bytes, path);
  if (!array) return Unusable(path, array.error().message);
  bytes->clear();
  bytes->shrink_to_fit();
  const std::vector<int64_t>& shape = array->shape;  // two or three dimensions: ParseNpy sees to it
  auto bitmap = std::make_shared<Bitmap>();
  bitmap->heads = shape.size() == 3 ? shape[0] : 1;
  bitmap->q_len = shape[shape.size() - 2];
  bitmap->kv_len = shape[shape.size() - 1];
  bitmap->cells = std::move(array->cells);
  bitmap->digest = BitmapDigest(*bitmap);
  loaded_.emplace(path, bitmap);
  return bitmap;
}

}  // namespace tessera
