// The interpreter's core: runs one function of a verified module on memrefs and scalars. interpret.cc gives it the
// grid.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/mosaic/interpret.h"
#include "lanes/xla/mosaic/words.h"

namespace tessera::mosaic {

// A view of memory that somebody else owns.
struct Memref {
  std::byte* words = nullptr;
  Element element = Element::kF32;
  std::vector<int64_t> dims = {};
  std::vector<int64_t> strides = {};  // in words
};
Memref DenseMemref(std::byte* words, Element element, std::vector<int64_t> dims);

// What all functions of one run share.
struct RunState {
  InterpretOptions options;
  WordPool pool;
  int64_t num_rounds = 0;
  // Copies that were started, by the semaphore that will say they are done: where they go, and the words.
  struct Copy {
    Memref to;
    Words words;
  };
  std::map<const std::byte*, std::deque<Copy>> copies;
  std::string fault;  // the first, with its operation
};

class Machine {
 public:
  Machine(const Function& function, RunState& state);
  ~Machine();
  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) = delete;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void SetScalar(size_t argument, int32_t value);
  void SetMemref(size_t argument, Memref memref);
  // False when there was a fault.
  bool Run();
  // What the last run returned: scalars, of an index map.
  const std::vector<int32_t>& returned() const { return returned_; }

 private:
  struct Slot {
    alignas(kWordBytes) std::byte word[kWordBytes];  // of a scalar
    Words words;                                     // of a vector
    Memref memref;
  };
  struct Node;
  using Block = std::vector<Node>;

  Block Decode(const Region& region);
  static void DecodeShapes(const Function& function, Node& node);
  bool RunBlock(const Block& block);
  bool RunNode(const Node& node);
  bool RunArithmetic(const Node& node);
  bool RunVector(const Node& node);
  bool RunMemory(const Node& node);
  bool RunCopy(const Node& node);
  bool RunIf(const Node& node);
  bool RunFor(const Node& node);
  bool RunWhile(const Node& node);
  bool Fault(const Node& node, std::string text);

  Slot& At(ValueId value) { return slots_[static_cast<size_t>(value)]; }
  std::byte* Data(ValueId value);
  std::byte* NewResult(const Node& node);  // memory for the node's result
  int32_t Scalar(ValueId value);
  // Moves the values that a block's terminator gives into other slots, all at once.
  void Hand(std::span<const ValueId> from, std::span<const ValueId> to);
  void Release(const Block& block);
  // The part of a memref at these indices; false when it is not inside.
  bool Part(const Node& node, size_t first_index, std::span<const int64_t> dims, Memref& part);

  const Function& function_;
  RunState& state_;
  std::vector<Slot> slots_;
  std::unique_ptr<Block> body_;
  std::vector<int32_t> returned_;
};

}  // namespace tessera::mosaic
