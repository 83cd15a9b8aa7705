// Products with AMX: tiles of 16 rows of 64 bytes, and an instruction that adds the product of a tile of A (16 rows of
// 32 values) and one of B (16 pairs of rows, 16 columns) to a tile of C (16 x 16). Operands are stored as pairs-inl.h
// writes them.
#include "lanes/cpu/matrix_units.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::lanes::cpu {
namespace {

constexpr int64_t kTile = 16;       // rows of every tile, and columns of one of C
constexpr int64_t kBlock = 32;      // of C: two tiles by two
constexpr int64_t kDepth = 32;      // values along k in a tile
constexpr int64_t kWordBytes = 4;   // of B and C
constexpr int64_t kValueBytes = 2;  // of A

// What ldtilecfg reads: palette 1, and for each of the eight tiles its bytes per row and its rows.
struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

// Constant, in memory: some compilers tell their optimiser of the first few bytes only.
constexpr TileConfig kConfig{.palette = 1,
                             .start_row = 0,
                             .reserved = {},
                             .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                             .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

// Tiles 0 to 3 are C (rows by columns), 4 and 5 are A, 6 and 7 are B: every loaded tile is used twice.
__attribute__((target("amx-tile,amx-bf16"))) void Block(const Product& p, const uint16_t* a, const uint32_t* b,
                                                        float* c) {
  const int64_t a_bytes = p.a_stride * kValueBytes;
  const int64_t b_bytes = p.b_stride * kWordBytes;
  const int64_t c_bytes = p.c_stride * kWordBytes;
  float* lower_c = c + kTile * p.c_stride;
  if (p.accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTile, c_bytes);
    _tile_loadd(2, lower_c, c_bytes);
    _tile_loadd(3, lower_c + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < p.num_segments; ++s) {
    const uint16_t* a_at = a + s * p.a_segment;
    const uint32_t* b_at = b + s * p.b_segment;
    for (int64_t k = 0; k < p.num_k; k += kDepth) {
      _tile_loadd(6, b_at, b_bytes);
      _tile_loadd(4, a_at, a_bytes);
      _tile_loadd(7, b_at + kTile, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a_at + kTile * p.a_stride, a_bytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a_at += kDepth;
      b_at += kDepth / 2 * p.b_stride;
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  _tile_stored(2, lower_c, c_bytes);
  _tile_stored(3, lower_c + kTile, c_bytes);
}

}  // namespace

// Columns outermost: their strip of B stays in the first cache while A passes over it.
void MultiplyAmx(const Product& p) {
  for (int64_t j = 0; j < p.width; j += kBlock) {
    for (int64_t row = 0; row < p.num_a; row += kBlock) {
      Block(p, static_cast<const uint16_t*>(p.a) + row * p.a_stride, static_cast<const uint32_t*>(p.b) + j,
            p.c + row * p.c_stride + j);
    }
  }
}

__attribute__((target("amx-tile"))) void EnterAmx() { _tile_loadconfig(&kConfig); }

// Tiles in use make switching threads dearer, and may keep a core from its fastest clock.
__attribute__((target("amx-tile"))) void LeaveAmx() { _tile_release(); }

bool MayUseAmx() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, of Linux 5.16
  constexpr long kTileData = 18;               // the number of the register state
  static const bool kGranted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return kGranted;
}

}  // namespace tessera::lanes::cpu
#endif
