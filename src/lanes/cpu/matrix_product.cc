#include "lanes/cpu/matrix_product.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "lanes/scratch.h"
#include "lanes/workers.h"

namespace tessera::lanes::cpu {
namespace {

// What a worker takes at once of c, and how much of a sum before it goes on: a panel of b then stays in the first
// cache, and rows of a and the sums in the second.
constexpr int64_t kBlockRows = 128;
constexpr int64_t kBlockColumns = 256;
constexpr int64_t kBlockInner = 512;

// The operands as products read them: a in blocks of rows, each stretch after stretch of the sum, [row][inner], or
// [inner][row] for a kernel that reads columns so; b in panels of columns, each [inner][panel].
class Run {
 public:
  Run(const Kernel& kernel, const MatrixProduct& product, std::byte* scratch)
      : kernel_(kernel),
        p_(product),
        in_bytes_(BytesOf(Type())),
        bytes_(kernel.operand_bytes),
        inner_(RoundUp(product.inner, std::max(kernel.dim_step, kernel.key_step))),
        is_by_inner_(product.a_is_turned && !kernel.needs_columns) {
    // A cache line more than a power of two, or rows would share a set of the first cache.
    a_stride_ = is_by_inner_ ? kBlockRows : std::min(inner_, kBlockInner) + kScratchAlign / bytes_;
    stretch_bytes_ = (is_by_inner_ ? kBlockInner : kBlockRows) * a_stride_ * bytes_;
    Scratch slices(scratch == nullptr ? Scratch() : Scratch({scratch, SIZE_MAX}));
    b_ = slices.TakeBytes(NumPanels() * kernel.panel * inner_ * bytes_);
    a_ = slices.TakeBytes(NumBlocks() * BlockBytes());
    scratch_bytes_ = slices.bytes();
  }

  int64_t scratch_bytes() const { return scratch_bytes_; }

  int64_t NumPanels() const { return CeilDiv(p_.columns, kernel_.panel); }
  int64_t NumBlocks() const { return CeilDiv(p_.rows, kBlockRows); }
  int64_t NumUnits() const { return NumBlocks() * CeilDiv(p_.columns, kBlockColumns); }

  void PackPanel(int64_t panel) const {
    const int64_t first = panel * kernel_.panel;
    const int64_t columns = std::min(kernel_.panel, p_.columns - first);
    std::byte* to = b_ + panel * kernel_.panel * inner_ * bytes_;
    PackRows pack{.type = Type(), .to = to};
    if (p_.b_is_turned) {
      pack.from = p_.b + first * p_.inner * in_bytes_;
      pack.from_stride = p_.inner;
      pack.num_rows = columns;
      pack.dim = p_.inner;
      pack.padded_dim = inner_;
      pack.padded_rows = kernel_.panel;
      kernel_.pack_panel(pack);
    } else {
      pack.from = p_.b + first * in_bytes_;
      pack.from_stride = p_.columns;
      pack.num_rows = p_.inner;
      pack.dim = columns;
      pack.padded_dim = kernel_.panel;
      pack.padded_rows = inner_;
      pack.to_stride = kernel_.panel;
      kernel_.pack_b_rows(pack);
    }
  }

  void PackBlock(int64_t block) const {
    const int64_t first = block * kBlockRows;
    const int64_t rows = std::min(kBlockRows, p_.rows - first);
    for (int64_t at = 0; at < inner_; at += kBlockInner) {
      // The padding behind the sum's last stretch is zeros.
      const int64_t inner = std::clamp<int64_t>(p_.inner - at, 0, kBlockInner);
      const int64_t padded_inner = std::min(inner_ - at, kBlockInner);
      const int64_t padded_rows = is_by_inner_ ? kBlockRows : RoundUp(rows, kernel_.key_step);
      PackRows pack{.type = Type(), .to = a_ + block * BlockBytes() + at / kBlockInner * stretch_bytes_};
      pack.to_stride = a_stride_;
      if (p_.a_is_turned) {
        pack.from = p_.a + (at * p_.rows + first) * in_bytes_;
        pack.from_stride = p_.rows;
        pack.num_rows = inner;
        pack.dim = rows;
        pack.padded_dim = padded_rows;
        pack.padded_rows = padded_inner;
        (is_by_inner_ ? kernel_.pack_rows : kernel_.pack_columns)(pack);
      } else {
        pack.from = p_.a + (first * p_.inner + at) * in_bytes_;
        pack.from_stride = p_.inner;
        pack.num_rows = rows;
        pack.dim = inner;
        pack.padded_dim = padded_inner;
        pack.padded_rows = padded_rows;
        kernel_.pack_rows(pack);
      }
    }
  }

  void MultiplyUnit(int64_t unit) const {
    alignas(64) float sums[kBlockRows * kBlockColumns];  // panel after panel
    const int64_t block = unit % NumBlocks();
    const int64_t first = block * kBlockRows;
    const int64_t rows = std::min(kBlockRows, p_.rows - first);
    const int64_t begin = unit / NumBlocks() * kBlockColumns;
    const int64_t end = std::min(begin + kBlockColumns, p_.columns);
    Product product{.a_stride = a_stride_,
                    .b_stride = kernel_.panel,
                    .c_stride = kernel_.panel,
                    .num_a = RoundUp(rows, kernel_.key_step),
                    .width = kernel_.panel};
    for (int64_t at = 0; at < inner_; at += kBlockInner) {
      product.a = a_ + block * BlockBytes() + at / kBlockInner * stretch_bytes_;
      product.num_k = std::min(kBlockInner, inner_ - at);
      product.accumulate = at != 0;
      for (int64_t column = begin; column < end; column += kernel_.panel) {
        product.b = b_ + (column * inner_ + at * kernel_.panel) * bytes_;
        product.c = sums + (column - begin) * kBlockRows;
        (is_by_inner_ ? kernel_.multiply_columns : kernel_.multiply)(product);
      }
    }
    for (int64_t column = begin; column < end; column += kernel_.panel) {
      const float* from = sums + (column - begin) * kBlockRows;
      const auto bytes = static_cast<size_t>(std::min(kernel_.panel, end - column)) * sizeof(float);
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(p_.c + (first + row) * p_.columns + column, from + row * kernel_.panel, bytes);
      }
    }
  }

 private:
  ElementType Type() const { return ToElementType(kernel_.dtype); }
  int64_t BlockBytes() const { return CeilDiv(inner_, kBlockInner) * stretch_bytes_; }

  const Kernel& kernel_;
  const MatrixProduct& p_;
  int64_t in_bytes_;  // of an element of a and b, and of what products read
  int64_t bytes_;
  int64_t inner_;  // padded with zeros
  bool is_by_inner_;
  int64_t a_stride_ = 0;
  int64_t stretch_bytes_ = 0;  // of a block's rows in one stretch of the sum
  int64_t scratch_bytes_ = 0;
  std::byte* a_ = nullptr;
  std::byte* b_ = nullptr;
};

}  // namespace

int64_t ScratchBytes(const Kernel& kernel, const MatrixProduct& product) {
  return Run(kernel, product, nullptr).scratch_bytes();
}

void Multiply(const Kernel& kernel, const MatrixProduct& product, std::byte* scratch, int64_t threads) {
  const Run run(kernel, product, scratch);
  const int64_t panels = run.NumPanels();
  RunUnits(threads, panels + run.NumBlocks(), [&](int64_t unit, int64_t) {
    if (unit < panels) {
      run.PackPanel(unit);
    } else {
      run.PackBlock(unit - panels);
    }
  });
  RunUnits(threads, run.NumUnits(), [&](int64_t unit, int64_t) { run.MultiplyUnit(unit); },
           {kernel.enter, kernel.leave});
}

}  // namespace tessera::lanes::cpu
