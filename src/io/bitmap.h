// The bitmap("file.npy") term: reading its file, and the digest that ties a contract to the file's content.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tessera/bitmap.h"
#include "tessera/error.h"

namespace tessera {

// XXH3-128 of heads, q_len, kv_len and the cells, as 32 hex digits.
std::string BitmapDigest(const Bitmap& bitmap);

// Reads [q,kv] or [heads,q,kv] files, each once however many heads name it.
class BitmapLoader {
 public:
  explicit BitmapLoader(std::string base_dir) : base_dir_(std::move(base_dir)) {}
  // `path` is taken relative to the base directory unless it is absolute.
  Result<std::shared_ptr<const Bitmap>> Load(const std::string& path);

 private:
  std::string base_dir_;
  std::map<std::string, std::shared_ptr<const Bitmap>> loaded_;
};

}  // namespace tessera
