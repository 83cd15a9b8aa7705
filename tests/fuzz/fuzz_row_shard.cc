// Shards of rows: any bytes give an error, or rows that can be checked, read and related whatever is in them.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "fuzz.h"
#include "tessera/row_batch.h"

namespace tessera {

bool FuzzRowShard(const uint8_t* data, size_t size) {
  // A shard is mapped, so that it has to be a file, if one of no folder.
  const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  Require(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), "there is memory for a file");
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const auto shard = RowShard::Open(path);
  ::close(fd);
  if (!shard) {
    Require(!ToText(shard.error()).empty(), "an error has a text");
    return false;
  }
  const Status good = CheckRows(*shard, path);
  Require(good || !good.error().violations.empty(), "what is wrong has a name");
  const int64_t rows = std::min<int64_t>(shard->rows(), 4);
  RowBatch batch;
  ReadRows(*shard, {0, rows}, 1, batch);
  Require(static_cast<int64_t>(batch.input_ids.size()) == rows * shard->row_tokens(), "a batch has the rows' shape");
  std::vector<int8_t> masks;
  RelationMasks(*shard, {0, 1}, 1, masks);
  return good.has_value();
}

}  // namespace tessera
