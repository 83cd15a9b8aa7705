#include "lanes/xla/pjrt/wire.h"

#include <fmt/format.h>

#include <cstring>

namespace tessera::pjrt {

bool WireReader::Fail(const char* what) {
  fault_ = what;
  return false;
}

std::string WireReader::Fault() const {
  return fmt::format("{} at byte {}", fault_ == nullptr ? "nothing wrong" : fault_, rest_.data() - begin_);
}

bool WireReader::NextVarint(uint64_t& value) {
  value = 0;
  for (size_t i = 0; i < 10; ++i) {
    if (i >= rest_.size()) return Fail("an integer is cut off");
    const uint64_t byte = static_cast<unsigned char>(rest_[i]);
    if (i == 9 && byte > 1) return Fail("an integer has more than 64 bits");
    value |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      rest_.remove_prefix(i + 1);
      return true;
    }
  }
  return Fail("an integer has more than 64 bits");
}

bool WireReader::Next(WireField& field) {
  if (fault_ != nullptr || rest_.empty()) return false;
  uint64_t tag = 0;
  if (!NextVarint(tag)) return false;
  if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) return Fail("a field number is out of range");
  field = {.number = static_cast<uint32_t>(tag >> 3), .type = static_cast<uint32_t>(tag & 7), .value = 0, .bytes = {}};
  switch (field.type) {
    case 0:
      return NextVarint(field.value);
    case 1:
    case 5: {
      const size_t size = field.type == 1 ? 8 : 4;
      if (rest_.size() < size) return Fail("a number is cut off");
      std::memcpy(&field.value, rest_.data(), size);
      rest_.remove_prefix(size);
      return true;
    }
    case 2: {
      uint64_t size = 0;
      if (!NextVarint(size)) return false;
      if (size > rest_.size()) return Fail("a field is longer than what is left");
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
    default:
      return Fail("a field has a type that is no longer in use or unknown");
  }
}

std::string AddIntegers(const WireField& field, std::vector<int64_t>& into) {
  if (field.type == 0) {
    into.push_back(static_cast<int64_t>(field.value));
    return {};
  }
  WireReader packed(field.bytes);
  for (uint64_t value = 0; !packed.at_end();) {
    if (!packed.NextVarint(value)) return packed.Fault();
    into.push_back(static_cast<int64_t>(value));
  }
  return {};
}

void WireWriter::Varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
  bytes_ += static_cast<char>(value);
}

void WireWriter::Int(uint32_t number, int64_t value) {
  Varint(uint64_t{number} << 3);
  Varint(static_cast<uint64_t>(value));
}

void WireWriter::Real(uint32_t number, double value) {
  Varint(uint64_t{number} << 3 | 1);
  char bytes[sizeof(value)];
  std::memcpy(bytes, &value, sizeof(value));
  bytes_.append(bytes, sizeof(value));
}

void WireWriter::Bytes(uint32_t number, std::string_view value) {
  Varint(uint64_t{number} << 3 | 2);
  Varint(value.size());
  bytes_ += value;
}

}  // namespace tessera::pjrt
