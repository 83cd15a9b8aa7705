// Reads .npy. The header is a Python dictionary in text; only the one shape of it that NumPy writes is accepted.
#include "io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "io/file.h"
#include "io/limits.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads {'descr': '|b1', 'fortran_order': False, 'shape': (2, 3), }. Each step returns false when the text is not
// what it needs; the first that does leaves its reason.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  bool Read(Header* header) {
    if (!Expect('{')) return false;
    while (!Accept('}')) {
      std::string key;
      if (!ReadText(&key) || !Expect(':') || !ReadValue(key, header)) return false;
      if (!Accept(',')) {
        if (!Expect('}')) return false;
        break;
      }
    }
    SkipSpace();
    if (pos_ != text_.size()) return Refuse("there is text after the header's dictionary");
    if (!header->descr || !header->fortran_order || !header->shape)
      return Refuse("the header must have 'descr', 'fortran_order' and 'shape'");
    return true;
  }

  const std::string& problem() const { return problem_; }

 private:
  bool Refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  void SkipSpace() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\t')) ++pos_;
  }

  bool Accept(char wanted) {
    SkipSpace();
    if (pos_ >= text_.size() || text_[pos_] != wanted) return false;
    ++pos_;
    return true;
  }

  bool Expect(char wanted) {
    return Accept(wanted) || Refuse(fmt::format("the header needs '{}' at its byte {}", wanted, pos_));
  }

  bool ReadText(std::string* out) {
    SkipSpace();
    if (pos_ >= text_.size() || (text_[pos_] != '\'' && text_[pos_] != '"'))
      return Refuse(fmt::format("the header needs a quoted text at its byte {}", pos_));
    const size_t end = text_.find(text_[pos_], pos_ + 1);
    if (end == std::string_view::npos) return Refuse("a quoted text in the header does not end");
    *out = std::string(text_.substr(pos_ + 1, end - pos_ - 1));
    pos_ = end + 1;
    return true;
  }

  bool ReadWord(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  bool ReadBool(bool* out) {
    SkipSpace();
    *out = ReadWord("True");
    return *out || ReadWord("False") || Refuse("the header's 'fortran_order' must be True or False");
  }

  bool ReadNumber(int64_t* out) {
    SkipSpace();
    const size_t begin = pos_;
    int64_t value = 0;
    while (pos_ < text_.size() && text_[pos_] >= '0' && text_[pos_] <= '9') {
      if (__builtin_mul_overflow(value, int64_t{10}, &value) ||
          __builtin_add_overflow(value, int64_t{text_[pos_] - '0'}, &value))
        return Refuse("a dimension in the header is too large");
      ++pos_;
    }
    *out = value;
    return pos_ > begin || Refuse(fmt::format("the header needs a number at its byte {}", pos_));
  }

  bool ReadShape(std::vector<int64_t>* out) {
    if (!Expect('(')) return false;
    while (!Accept(')')) {
      int64_t dim = 0;
      if (!ReadNumber(&dim)) return false;
      out->push_back(dim);
      if (!Accept(',')) return Expect(')');
    }
    return true;
  }

  bool ReadValue(const std::string& key, Header* header) {
    if (key == "descr" && !header->descr) return ReadText(&header->descr.emplace());
    if (key == "fortran_order" && !header->fortran_order) return ReadBool(&header->fortran_order.emplace());
    if (key == "shape" && !header->shape) return ReadShape(&header->shape.emplace());
    return Refuse("the header has an unknown or repeated field");
  }

  std::string_view text_;
  size_t pos_ = 0;
  std::string problem_;
};

uint64_t ReadLittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// Column-major to row-major: the first axis runs fastest in the file, the last one in the result.
std::vector<uint8_t> FromFortran(std::string_view data, const std::vector<int64_t>& shape) {
  std::vector<uint8_t> cells;
  cells.reserve(data.size());
  const int64_t planes = shape.size() == 3 ? shape[0] : 1;
  const int64_t rows = shape[shape.size() - 2];
  const int64_t columns = shape[shape.size() - 1];
  for (int64_t plane = 0; plane < planes; ++plane) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t at = plane + planes * (row + rows * column);
        cells.push_back(static_cast<uint8_t>(data[static_cast<size_t>(at)]));
      }
    }
  }
  return cells;
}

tl::unexpected<Error> Refused(const std::string& why, const std::string& where) {
  return Fail(ErrorCode::kTensorFile, "not a usable .npy file: " + why, where);
}

// Reads and judges the header of a file of `size` bytes that begins with `head`. Returns what is wrong, or nothing:
// then the data begins at `data_at` and is exactly what the shape needs.
std::string ReadHeader(std::string_view head, uint64_t size, Header* header, size_t* data_at) {
  if (head.substr(0, kMagic.size()) != kMagic) return "it does not begin with NumPy's magic bytes";
  if (head.size() < kMagic.size() + 2) return "it ends before its version";
  const auto major = static_cast<uint8_t>(head[kMagic.size()]);
  if (major < 1 || major > 3) return fmt::format("its format version is {}; 1, 2 and 3 are read", major);
  const size_t length_at = kMagic.size() + 2;
  const size_t length_bytes = major == 1 ? 2 : 4;
  if (head.size() < length_at + length_bytes) return "it ends before its header";
  const uint64_t header_bytes = ReadLittleEndian(head.substr(length_at, length_bytes));
  const size_t header_at = length_at + length_bytes;
  if (header_bytes > kMaxNpyHeaderBytes)
    return fmt::format("its header says {} bytes; {} are allowed", header_bytes, kMaxNpyHeaderBytes);
  if (header_bytes > size - header_at)
    return fmt::format("its header says {} bytes, {} are left", header_bytes, size - header_at);
  HeaderReader reader(head.substr(header_at, header_bytes));
  if (!reader.Read(header)) return reader.problem();
  std::string_view type = *header->descr;
  // Byte order means nothing for one-byte elements.
  if (!type.empty() && (type[0] == '|' || type[0] == '<' || type[0] == '>' || type[0] == '=')) type.remove_prefix(1);
  if (type != "b1" && type != "u1" && type != "?") return "its type must be bool or uint8";
  const std::vector<int64_t>& shape = *header->shape;
  if (shape.size() != 2 && shape.size() != 3)
    return fmt::format("it has {} dimensions; 2 or 3 are expected", shape.size());
  const std::optional<int64_t> count = CheckedProduct(shape);
  if (!count) return "its shape is too large";
  *data_at = header_at + header_bytes;
  const uint64_t data_bytes = size - *data_at;
  if (static_cast<uint64_t>(*count) != data_bytes)
    return fmt::format("its shape needs {} bytes of data, {} are there", *count, data_bytes);
  return {};
}

}  // namespace

Result<NpyArray> ParseNpy(std::string_view bytes, const std::string& where) {
  Header header;
  size_t data_at = 0;
  if (const std::string problem = ReadHeader(bytes, bytes.size(), &header, &data_at); !problem.empty())
    return Refused(problem, where);
  const std::string_view data = bytes.substr(data_at);
  const auto bad = std::find_if(data.begin(), data.end(), [](char c) { return static_cast<uint8_t>(c) > 1; });
  if (bad != data.end()) {
    return Refused(fmt::format("element {} is {}; only 0 and 1 are allowed", bad - data.begin(),
                               static_cast<unsigned>(static_cast<uint8_t>(*bad))),
                   where);
  }
  NpyArray array{*header.shape, {}};
  if (*header.fortran_order) {
    array.cells = FromFortran(data, array.shape);
  } else {
    array.cells.assign(data.begin(), data.end());
  }
  return array;
}

Status CheckNpyHead(std::string_view head, int64_t size, const std::string& where) {
  static_assert(kHeadBytes > kMaxNpyHeaderBytes + 12);
  Header header;
  size_t data_at = 0;
  const std::string problem = ReadHeader(head, static_cast<uint64_t>(size), &header, &data_at);
  if (!problem.empty()) return Refused(problem, where);
  return {};
}

}  // namespace tessera
