// The protobuf wire format, as far as needed here: a reader that walks one message's fields and a writer. No schema,
// no library: the messages we write have a dozen fields, those we read are skimmed for a few.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"

namespace tessera::pjrt {

struct WireField {
  uint32_t number = 0;
  uint32_t type = 0;       // 0 varint, 1 fixed 64, 2 bytes, 5 fixed 32
  uint64_t value = 0;      // of types 0, 1 and 5
  std::string_view bytes;  // of type 2; points into what is read
};

// Walks the fields of one message. Never reads beyond its bytes; what is not well-formed ends the walk with an error.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : begin_(bytes.data()), rest_(bytes) {}
  // False at the end and on damage; then ok() tells which.
  bool Next(WireField& field);
  bool ok() const { return fault_ == nullptr; }
  // The rest of a packed run of integers; one that is not packed gives its value alone.
  bool NextVarint(uint64_t& value);
  bool at_end() const { return rest_.empty(); }
  // What is wrong, and the byte of this message it was seen at.
  std::string Fault() const;

 private:
  bool Fail(const char* what);

  const char* begin_;
  std::string_view rest_;
  const char* fault_ = nullptr;
};

// A repeated integer field, packed or not, at the end of `into`; what is wrong with it, or nothing.
std::string AddIntegers(const WireField& field, std::vector<int64_t>& into);

class WireWriter {
 public:
  // A negative value takes ten bytes, as protobuf has it for int64.
  void Int(uint32_t number, int64_t value);
  void Bool(uint32_t number, bool value) { Int(number, value ? 1 : 0); }
  void Real(uint32_t number, double value);
  void Bytes(uint32_t number, std::string_view value);
  // Integers one after another, without their field: the content of a packed field.
  void Packed(int64_t value) { Varint(static_cast<uint64_t>(value)); }
  const std::string& bytes() const { return bytes_; }

 private:
  void Varint(uint64_t value);

  std::string bytes_;
};

}  // namespace tessera::pjrt
