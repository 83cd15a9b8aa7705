// Writes bitmaps as npy files, for tests of contracts that name one.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "tessera/contract.h"

namespace tessera {

// The bytes of an npy file of the given dtype and shape text: NpyBytes("|b1", "(2, 3)", cells).
inline std::string NpyBytes(std::string_view dtype, std::string_view shape, std::string_view cells) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", dtype, shape);
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\x01';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFF);
  bytes += static_cast<char>(header.size() >> 8);
  bytes += header;
  bytes += cells;
  return bytes;
}

inline std::string ToNpy(const Bitmap& bitmap) {
  const std::string heads = bitmap.heads == 1 ? "" : fmt::format("{}, ", bitmap.heads);
  const std::string shape = fmt::format("({}{}, {})", heads, bitmap.q_len, bitmap.kv_len);
  return NpyBytes("|b1", shape, std::string(bitmap.cells.begin(), bitmap.cells.end()));
}

inline void WriteBytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Writes the file of every bitmap term in the expression into `dir`.
inline void WriteBitmaps(const std::filesystem::path& dir, const MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm && expr.term.bitmap) WriteBytes(dir / expr.term.path, ToNpy(*expr.term.bitmap));
  for (const MaskExpr& child : expr.children) WriteBitmaps(dir, child);
}

}  // namespace tessera
