// Machine: control, and the order of things. Arithmetic on vectors and memory is in machine_vector.cc.
#include "lanes/xla/mosaic/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lanes/xla/mosaic/node.h"
#include "lanes/xla/mosaic/print.h"

namespace tessera::mosaic {

Memref DenseMemref(std::byte* words, Element element, std::vector<int64_t> dims) {
  std::vector<int64_t> strides = RowMajor(dims);
  return {words, element, std::move(dims), std::move(strides)};
}

Machine::Machine(const Function& function, RunState& state)
    : function_(function), state_(state), slots_(function.values.size()) {
  body_ = std::make_unique<Block>(Decode(function.body));
}
Machine::~Machine() = default;
Machine::Machine(Machine&&) noexcept = default;

void Machine::SetScalar(size_t argument, int32_t value) {
  std::memcpy(At(function_.body.arguments[argument]).word, &value, sizeof(value));
}
void Machine::SetMemref(size_t argument, Memref memref) {
  At(function_.body.arguments[argument]).memref = std::move(memref);
}

std::byte* Machine::Data(ValueId value) {
  Slot& slot = At(value);
  return slot.words ? slot.words.get() : slot.word;
}

std::byte* Machine::NewResult(const Node& node) {
  Slot& slot = At(node.op->results[0]);
  if (!node.type.IsVector()) return slot.word;
  slot.words = state_.pool.Take(node.count);
  return slot.words.get();
}

int32_t Machine::Scalar(ValueId value) {
  int32_t scalar = 0;
  std::memcpy(&scalar, At(value).word, sizeof(scalar));
  return scalar;
}

bool Machine::Fault(const Node& node, std::string text) {
  if (state_.fault.empty()) state_.fault = fmt::format("{}, in {}", text, Print(function_, *node.op));
  return false;
}

bool Machine::Run() {
  if (!RunBlock(*body_)) return false;
  returned_.clear();
  for (const ValueId value : body_->back().op->operands) returned_.push_back(Scalar(value));
  Release(*body_);
  return true;
}

void Machine::Hand(std::span<const ValueId> from, std::span<const ValueId> to) {
  std::vector<Slot> values;
  values.reserve(from.size());
  for (const ValueId value : from) values.push_back(At(value));
  for (size_t at = 0; at < to.size(); ++at) At(to[at]) = std::move(values[at]);
}

// What the terminator read last; every other value went when it was read.
void Machine::Release(const Block& block) {
  for (const ValueId value : block.back().dead) At(value).words.reset();
}

// The terminator's operands stay alive: the caller hands them on, then releases the block.
bool Machine::RunBlock(const Block& block) {
  for (size_t at = 0; at + 1 < block.size(); ++at) {
    const Node& node = block[at];
    if (!RunNode(node)) return false;
    for (const ValueId value : node.dead) At(value).words.reset();
  }
  return true;
}

bool Machine::RunNode(const Node& node) {
  switch (FormOf(node.op->code)) {
    case Form::kIf:
      return RunIf(node);
    case Form::kFor:
      return RunFor(node);
    case Form::kWhile:
      return RunWhile(node);
    case Form::kVectorLoad:
    case Form::kVectorStore:
    case Form::kScalarLoad:
    case Form::kScalarStore:
    case Form::kMemrefSlice:
    case Form::kMemrefSqueeze:
      return RunMemory(node);
    case Form::kEnqueueDma:
    case Form::kWaitDma:
      return RunCopy(node);
    case Form::kConstant:
    case Form::kBinaryFloat:
    case Form::kBinaryInt:
    case Form::kUnaryFloat:
    case Form::kCompareInt:
    case Form::kCompareFloat:
    case Form::kSelect:
    case Form::kConvert:
    case Form::kBitcast:
    case Form::kAssumeMultiple:
      return RunArithmetic(node);
    default:
      return RunVector(node);
  }
}

bool Machine::RunIf(const Node& node) {
  const Block& block = node.regions[Scalar(node.op->operands[0]) != 0 ? 0 : 1];
  if (block.empty()) return true;
  if (!RunBlock(block)) return false;
  Hand(block.back().op->operands, node.op->results);
  Release(block);
  return true;
}

bool Machine::RunFor(const Node& node) {
  const std::span<const ValueId> operands = node.op->operands;
  const std::span<const ValueId> arguments = node.op->regions[0].arguments;
  const Block& block = node.regions[0];
  const int64_t end = Scalar(operands[1]);
  const int64_t step = Scalar(operands[2]);
  if (step <= 0) return Fault(node, fmt::format("a loop by steps of {}", step));
  Hand(operands.subspan(3), arguments.subspan(1));
  for (int64_t at = Scalar(operands[0]); at < end; at += step) {
    if (++state_.num_rounds > state_.options.most_rounds) return Fault(node, "a loop that does not end");
    const auto value = static_cast<int32_t>(at);
    std::memcpy(At(arguments[0]).word, &value, sizeof(value));
    if (!RunBlock(block)) return false;
    Hand(block.back().op->operands, arguments.subspan(1));
    // The carried values are the arguments now; what the block made itself goes.
    for (const ValueId dead : block.back().dead) {
      if (std::ranges::find(arguments, dead) == arguments.end()) At(dead).words.reset();
    }
  }
  Hand(arguments.subspan(1), node.op->results);
  for (const ValueId argument : arguments) At(argument).words.reset();
  return true;
}

bool Machine::RunWhile(const Node& node) {
  const Block& before = node.regions[0];
  const Block& after = node.regions[1];
  Hand(node.op->operands, node.op->regions[0].arguments);
  while (true) {
    if (++state_.num_rounds > state_.options.most_rounds) return Fault(node, "a loop that does not end");
    if (!RunBlock(before)) return false;
    const std::span<const ValueId> given = before.back().op->operands;
    const bool goes_on = Scalar(given[0]) != 0;
    Hand(given.subspan(1), goes_on ? std::span<const ValueId>(node.op->regions[1].arguments) : node.op->results);
    Release(before);
    if (!goes_on) return true;
    if (!RunBlock(after)) return false;
    Hand(after.back().op->operands, node.op->regions[0].arguments);
    Release(after);
  }
}

}  // namespace tessera::mosaic
