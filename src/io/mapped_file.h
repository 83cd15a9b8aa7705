// A regular file as it lies in the page cache, read only: for shards that are larger than what is wanted of them.
// Whoever cuts a file short while it is mapped ends the process that reads there; writers of ours replace files and
// never do.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/error.h"

namespace tessera {

class MappedFile {
 public:
  MappedFile() = default;
  static Result<MappedFile> Open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view bytes() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tessera
