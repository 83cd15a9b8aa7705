#include "dense_npy.h"

#include <fmt/format.h>

#include "tessera/io.h"

namespace tessera::program {

Status WriteDenseNpy(const std::string& path, const PlanView& plan, int64_t batch_row, int64_t head) {
  auto dense = ToDense(plan, Direction::kForward, batch_row, head);
  if (!dense) return tl::unexpected(dense.error());
  // Format 1.0: magic, version, the header's length, then the header padded with blanks to a multiple of 64 bytes.
  constexpr size_t kBeforeHeader = 10;
  std::string header =
      fmt::format("{{'descr': '|b1', 'fortran_order': False, 'shape': ({}, {}), }}", plan.q_len, plan.kv_len);
  header.append(63 - (kBeforeHeader + header.size()) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  file += header;
  file.append(reinterpret_cast<const char*>(dense->data()), dense->size());
  return WriteFile(path, file);
}

}  // namespace tessera::program
