// The safetensors format: 8 bytes of header length, a JSON header that names each tensor's type, shape and byte
// range, then the data. Files may be hostile: every number is checked against the bytes that are really there before
// anything is allocated for it.
#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/math.h"
#include "base/spelling.h"
#include "base/try.h"
#include "io/file.h"
#include "io/json_events.h"
#include "io/json_writer.h"
#include "io/limits.h"
#include "tessera/io.h"

namespace tessera {
namespace {

constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxNameInMessage = 80;
constexpr ElementType kElementTypes[] = {ElementType::kF32, ElementType::kBf16, ElementType::kF16, ElementType::kI8,
                                         ElementType::kI16, ElementType::kI32,  ElementType::kI64, ElementType::kBool};

struct Entry {
  std::string name;
  std::string dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
  // Known once the entry is checked.
  ElementType type = ElementType::kF32;
  int64_t begin = 0;
  int64_t end = 0;
};

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"key": "text"}}
class HeaderHandler : public JsonHandler {
 public:
  std::vector<Entry> Take() { return std::move(entries_); }
  TensorMetadata TakeMetadata() { return std::move(metadata_); }

  bool OnInteger(int64_t value) override {
    if (numbers_ == nullptr) return Refuse(Where() + " must not be a number");
    if (value < 0) return Refuse(Where() + " must not be negative");
    if (numbers_->size() == kMaxTensorRank)
      return Refuse(fmt::format("{} has more than {} entries", Where(), kMaxTensorRank));
    numbers_->push_back(value);
    return true;
  }
  bool OnText(std::string_view value) override {
    if (depth_ != 2) return Refuse(Where() + " must not be a text");
    if (in_metadata_) {
      metadata_[field_] = std::string(value);
      return true;
    }
    if (field_ != "dtype") return Refuse(Where() + " must be an array of integers");
    entries_.back().dtype = std::string(value);
    return true;
  }
  bool OnOther(std::string_view what) override { return Refuse(fmt::format("{} must not be {}", Where(), what)); }
  bool OnKey(std::string_view key) override {
    field_.clear();
    if (depth_ == 1) {
      in_metadata_ = key == kMetadata;
      if (in_metadata_) return true;
      if (entries_.size() == kMaxTensorsPerFile)
        return Refuse(fmt::format("it has more than {} tensors", kMaxTensorsPerFile));
      entries_.emplace_back().name = std::string(key);
      return true;
    }
    if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets")
      return Refuse(fmt::format("{} has an unknown field \"{}\"", Where(), Shorten(key, kMaxNameInMessage)));
    field_ = std::string(key);
    return true;
  }
  bool OnObjectBegin() override {
    if (depth_ == 2) return Refuse(Where() + " must not be an object");
    ++depth_;
    return true;
  }
  bool OnObjectEnd() override {
    --depth_;
    return true;
  }
  bool OnArrayBegin() override {
    if (depth_ != 2 || in_metadata_ || numbers_ != nullptr || (field_ != "shape" && field_ != "data_offsets"))
      return Refuse(Where() + " must not be an array");
    Entry& entry = entries_.back();
    numbers_ = &(field_ == "shape" ? entry.shape : entry.offsets).emplace();
    return true;
  }
  bool OnArrayEnd() override {
    numbers_ = nullptr;
    return true;
  }

 private:
  std::string Where() const {
    if (depth_ == 0) return "the header";
    std::string where =
        in_metadata_ ? std::string(kMetadata) : fmt::format("tensor \"{}\"", Shorten(LastName(), kMaxNameInMessage));
    return field_.empty() ? where : fmt::format("{} {}", where, field_);
  }
  std::string_view LastName() const { return entries_.empty() ? std::string_view() : entries_.back().name; }

  int depth_ = 0;  // objects open
  bool in_metadata_ = false;
  std::string field_;
  std::vector<int64_t>* numbers_ = nullptr;  // the array being read
  std::vector<Entry> entries_;
  TensorMetadata metadata_;
};

std::optional<ElementType> FindType(std::string_view text) {
  for (const ElementType type : kElementTypes) {
    if (ToText(type) == text) return type;
  }
  return std::nullopt;
}

// Returns what is wrong with one entry, or nothing; fills its type and range.
std::string CheckEntry(int64_t data_bytes, Entry* entry) {
  const auto problem = [&](const std::string& why) {
    return fmt::format("tensor \"{}\" {}", Shorten(entry->name, kMaxNameInMessage), why);
  };
  if (entry->dtype.empty() || !entry->shape || !entry->offsets) return problem("needs dtype, shape and data_offsets");
  const std::optional<ElementType> type = FindType(entry->dtype);
  if (!type)
    return problem(fmt::format("has dtype \"{}\"; F32, BF16, F16, I8, I16, I32, I64 and BOOL are read",
                               Shorten(entry->dtype, kMaxNameInMessage)));
  if (entry->offsets->size() != 2) return problem("data_offsets must be [begin, end]");
  entry->type = *type;
  entry->begin = (*entry->offsets)[0];
  entry->end = (*entry->offsets)[1];
  if (entry->begin > entry->end || entry->end > data_bytes) {
    return problem(
        fmt::format("says bytes {} to {}, but there are {} bytes of data", entry->begin, entry->end, data_bytes));
  }
  const std::optional<int64_t> count = CheckedProduct(*entry->shape);
  const std::optional<int64_t> bytes = count ? CheckedMul(*count, BytesOf(*type)) : std::nullopt;
  if (!bytes) return problem("has a shape that is too large");
  if (const int64_t given = entry->end - entry->begin; *bytes != given)
    return problem(fmt::format("needs {} bytes for its shape, its data_offsets give {}", *bytes, given));
  return {};
}

// The ranges must cover the data exactly: a gap could hide something, an overlap could alias two tensors.
std::string CheckCoverage(int64_t data_bytes, std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
  int64_t at = 0;
  for (const Entry& entry : *entries) {
    if (entry.begin != at) {
      return fmt::format("tensor \"{}\" begins at byte {}, expected {}: tensors must neither overlap nor leave gaps",
                         Shorten(entry.name, kMaxNameInMessage), entry.begin, at);
    }
    at = entry.end;
  }
  if (at != data_bytes) return fmt::format("its tensors end at byte {} of {} bytes of data", at, data_bytes);
  return {};
}

uint64_t HeaderBytes(std::string_view head) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, head.data(), kLengthBytes);
  return header_bytes;
}

// Reads the header of a file that has this many bytes of data. Returns what is wrong, or nothing.
std::string ReadEntries(std::string_view header, int64_t data_bytes, std::vector<Entry>* entries,
                        TensorMetadata* metadata = nullptr) {
  HeaderHandler handler;
  constexpr int kHeaderDepth = 3;
  if (const std::string problem = WalkJson(header, kHeaderDepth, handler); !problem.empty()) return problem;
  *entries = handler.Take();
  if (metadata != nullptr) *metadata = handler.TakeMetadata();
  for (Entry& entry : *entries) {
    if (const std::string problem = CheckEntry(data_bytes, &entry); !problem.empty()) return problem;
  }
  return CheckCoverage(data_bytes, entries);
}

}  // namespace

std::string CheckSafetensorsHead(std::string_view head, uint64_t size) {
  if (head.size() < kLengthBytes) return "it ends before the length of its header";
  const uint64_t header_bytes = HeaderBytes(head);
  const uint64_t left = size - kLengthBytes;
  if (header_bytes > kMaxTensorHeaderBytes)
    return fmt::format("its header says {} bytes; {} are allowed", header_bytes, kMaxTensorHeaderBytes);
  if (header_bytes > left) return fmt::format("its header says {} bytes, {} are left", header_bytes, left);
  if (header_bytes == 0 || head.size() == kLengthBytes || head[kLengthBytes] != '{')
    return "its header does not begin with '{'";
  if (header_bytes > head.size() - kLengthBytes) return {};  // a header of many tensors: judged once all is read
  std::vector<Entry> entries;
  return ReadEntries(head.substr(kLengthBytes, header_bytes), static_cast<int64_t>(left - header_bytes), &entries);
}

Result<TensorFileView> ViewSafetensors(std::string_view bytes, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    return Fail(ErrorCode::kTensorFile, "not a usable safetensors file: " + why, where);
  };
  if (const std::string problem = CheckSafetensorsHead(bytes, bytes.size()); !problem.empty()) return refuse(problem);
  const uint64_t header_bytes = HeaderBytes(bytes);
  const std::string_view rest = bytes.substr(kLengthBytes);
  const std::string_view header = rest.substr(0, header_bytes);
  const std::string_view data = rest.substr(header_bytes);

  std::vector<Entry> entries;
  TensorFileView view;
  const std::string problem = ReadEntries(header, static_cast<int64_t>(data.size()), &entries, &view.metadata);
  if (!problem.empty()) return refuse(problem);
  for (Entry& entry : entries) {
    const std::string_view range =
        data.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
    view.tensors.push_back({std::move(entry.name), entry.type, std::move(*entry.shape), range});
  }
  return view;
}

Result<TensorMap> ParseSafetensors(std::string_view bytes, const std::string& where) {
  TensorFileView view = TESSERA_TRY(ViewSafetensors(bytes, where));
  TensorMap tensors;
  for (TensorBytes& tensor : view.tensors) {
    const auto* first = reinterpret_cast<const std::byte*>(tensor.bytes.data());
    tensors.emplace(std::move(tensor.name),
                    Tensor{tensor.type, std::move(tensor.shape), {first, first + tensor.bytes.size()}});
  }
  return tensors;
}

Result<TensorMap> ReadSafetensors(const std::string& path, int64_t max_bytes) {
  const auto check = [&](std::string_view head, int64_t size) -> Status {
    const std::string problem = CheckSafetensorsHead(head, static_cast<uint64_t>(size));
    if (problem.empty()) return {};
    return Fail(ErrorCode::kTensorFile, "not a usable safetensors file: " + problem, path);
  };
  const std::string bytes = TESSERA_TRY(ReadFile(path, max_bytes, check));
  return ParseSafetensors(bytes, path);
}

std::string ToSafetensors(std::vector<TensorBytes> tensors, const TensorMetadata& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorBytes& a, const TensorBytes& b) { return BytesOf(a.type) > BytesOf(b.type); });
  JsonWriter header;
  header.BeginObject();
  if (!metadata.empty()) {
    header.Key(kMetadata).BeginObject();
    for (const auto& [key, value] : metadata) header.Key(key).Text(value);
    header.EndObject();
  }
  size_t data_bytes = 0;
  for (const TensorBytes& tensor : tensors) {
    const size_t end = data_bytes + tensor.bytes.size();
    header.Key(tensor.name).BeginObject();
    header.Key("dtype").Text(ToText(tensor.type)).Key("shape").Ints(tensor.shape);
    header.Key("data_offsets").Ints({static_cast<int64_t>(data_bytes), static_cast<int64_t>(end)}).EndObject();
    data_bytes = end;
  }
  std::string text = header.EndObject().Take();
  text.resize(RoundUp(text.size(), size_t{8}), ' ');
  const uint64_t header_bytes = text.size();
  std::string bytes;
  bytes.reserve(kLengthBytes + text.size() + data_bytes);
  bytes.append(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  bytes += text;
  for (const TensorBytes& tensor : tensors) bytes += tensor.bytes;
  return bytes;
}

std::string ToSafetensors(const TensorMap& tensors) {
  std::vector<TensorBytes> views;
  for (const auto& [name, tensor] : tensors) {
    const std::string_view bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    views.push_back({name, tensor.type, tensor.shape, bytes});
  }
  return ToSafetensors(std::move(views), {});
}

Status WriteSafetensors(const std::string& path, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata) return Fail(ErrorCode::kTensorFile, "a tensor must not be named __metadata__", path);
    const std::optional<int64_t> count = CheckedProduct(tensor.shape);
    const std::optional<int64_t> bytes = count ? CheckedMul(*count, BytesOf(tensor.type)) : std::nullopt;
    if (!bytes || *bytes != static_cast<int64_t>(tensor.bytes.size())) {
      return Fail(
          ErrorCode::kTensorFile,
          fmt::format("tensor \"{}\" holds {} bytes, which is not what its shape needs", name, tensor.bytes.size()),
          path);
    }
  }
  return WriteFile(path, ToSafetensors(tensors));
}

}  // namespace tessera
