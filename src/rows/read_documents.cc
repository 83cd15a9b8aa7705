// See read_documents.h.
#include "rows/read_documents.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/try.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "rows/add_document.h"
#include "rows/limits.h"

namespace tessera::rows {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 23;
constexpr int64_t kShardTokens = int64_t{1} << 20;  // of one block of a token shard

tl::unexpected<Error> ReadError(const std::string& path, const std::string& why) {
  return Fail(ErrorCode::kFileRead, "cannot read the file: " + why, path);
}

std::string Reason(int number) { return std::generic_category().message(number); }

}  // namespace

class DocumentReader::Source {
 public:
  virtual ~Source() = default;
  virtual Result<bool> Next(DocumentSet& documents) = 0;
};

// JSONL, read in blocks that end with a line.
class DocumentReader::LineSource : public Source {
 public:
  LineSource(int fd, std::string name, const DocumentOptions& options, const ReadPosition& position)
      : fd_(fd), name_(std::move(name)), options_(options), position_(position) {}
  ~LineSource() override { ::close(fd_); }

  Status Check() {
    if (::fstat(fd_, &before_) != 0) return ReadError(name_, Reason(errno));
    if (!S_ISREG(before_.st_mode)) return ReadError(name_, "documents are read from regular files");
    return {};
  }

  Result<bool> Next(DocumentSet& documents) override {
    size_t used = rest_;
    size_t line_end = 0;
    while (true) {
      buffer_.resize(std::max(buffer_.size(), used + kBlockBytes));
      const int64_t at = position_.offset + static_cast<int64_t>(used);
      const ssize_t got = ::pread(fd_, buffer_.data() + used, kBlockBytes, at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ReadError(name_, Reason(errno));
      const std::string_view read(buffer_.data() + used, static_cast<size_t>(got));
      used += static_cast<size_t>(got);
      if (got == 0) {
        TESSERA_TRY(CheckUnchanged());
        line_end = used;  // the last line may lack its end
        break;
      }
      if (const size_t newline = read.rfind('\n'); newline != std::string_view::npos) {
        line_end = used - read.size() + newline + 1;
        break;
      }
      if (static_cast<int64_t>(used) > kMaxDocumentBytes)
        return Fail(ErrorCode::kTooLarge, fmt::format("the line has more than the {} bytes allowed", kMaxDocumentBytes),
                    fmt::format("{} line {}", name_, position_.line));
    }
    if (line_end == 0) return false;
    const LineBlock block{std::string_view(buffer_.data(), line_end), name_, position_};
    TESSERA_TRY(parser_.Parse(block, options_, documents));
    position_.line += std::count(block.text.begin(), block.text.end(), '\n');
    position_.offset += static_cast<int64_t>(line_end);
    rest_ = used - line_end;
    std::memmove(buffer_.data(), buffer_.data() + line_end, rest_);
    return true;
  }

 private:
  Status CheckUnchanged() const {
    struct stat after {};
    if (::fstat(fd_, &after) == 0 && after.st_size == before_.st_size &&
        after.st_mtim.tv_sec == before_.st_mtim.tv_sec && after.st_mtim.tv_nsec == before_.st_mtim.tv_nsec)
      return {};
    return ReadError(name_, "it changed while it was read");
  }

  int fd_;
  std::string name_;
  const DocumentOptions& options_;
  ReadPosition position_;  // of the buffer's first byte
  LineParser parser_;
  std::string buffer_;
  size_t rest_ = 0;  // bytes of the buffer that no block has had
  struct stat before_ = {};
};

// tokens [N] and offsets [D + 1], any token column [N], and valid_token_count [D], by the names that lines have for
// them. What else a line may say, a shard cannot, and is refused rather than lost.
class DocumentReader::ShardSource : public Source {
 public:
  ShardSource(MappedFile file, std::string name, const DocumentOptions& options, const ReadPosition& position)
      : file_(std::move(file)), name_(std::move(name)), options_(options), position_(position) {}

  Status Check() {
    view_ = TESSERA_TRY(ViewSafetensors(file_.bytes(), name_));
    for (const TensorBytes& tensor : view_.tensors) TESSERA_TRY(Take(tensor));
    if (tokens_ == nullptr || offsets_ == nullptr) {
      return Fail(ErrorCode::kDocumentColumn,
                  fmt::format("column {} is missing", tokens_ == nullptr ? "tokens" : "offsets"), name_);
    }
    TESSERA_TRY(CheckShape(*tokens_, ElementType::kI32, std::nullopt));
    TESSERA_TRY(CheckShape(*offsets_, ElementType::kI64, std::nullopt));
    if (offsets_->shape[0] < 1) return Fail(ErrorCode::kDocumentColumn, "column offsets is empty", name_);
    if (offsets_->shape[0] == 1 && tokens_->shape[0] > 0) {
      return Fail(ErrorCode::kDocumentValue,
                  fmt::format("column offsets has no document, and there are {} tokens", tokens_->shape[0]), name_);
    }
    if (valid_ != nullptr) TESSERA_TRY(CheckShape(*valid_, ElementType::kI32, offsets_->shape[0] - 1));
    for (const TensorBytes* column : columns_) {
      if (column != nullptr) TESSERA_TRY(CheckShape(*column, ElementType::kI32, tokens_->shape[0]));
    }
    return {};
  }

  Result<bool> Next(DocumentSet& documents) override {
    documents.Clear();
    const int64_t count = offsets_->shape[0] - 1;
    for (; position_.offset < count && documents.token_begins.back() < kShardTokens; ++position_.offset) {
      TESSERA_TRY(AddNext(documents));
    }
    return documents.Size() > 0;
  }

 private:
  Status Take(const TensorBytes& tensor) {
    const TensorBytes** place = nullptr;
    if (tensor.name == "tokens" || tensor.name == "input_ids") place = &tokens_;
    if (tensor.name == "offsets") place = &offsets_;
    if (tensor.name == "valid_token_count" || tensor.name == "actual_token_count") place = &valid_;
    if (const auto column = FindTokenColumn(tensor.name)) place = &columns_[static_cast<size_t>(*column)];
    if (place == nullptr) {
      const auto meaning = DocumentHandler::MeaningOf(tensor.name);
      if (meaning == DocumentHandler::Meaning::kNone) return {};
      const bool is_made = meaning == DocumentHandler::Meaning::kMade;
      return Fail(ErrorCode::kDocumentColumn,
                  fmt::format("column {} {}", tensor.name,
                              is_made ? "is made by the packer" : "is one of lines: a token shard cannot have it"),
                  name_);
    }
    if (*place != nullptr) {
      return Fail(ErrorCode::kDocumentColumn,
                  fmt::format("columns {} and {} say the same thing", (*place)->name, tensor.name), name_);
    }
    *place = &tensor;
    return {};
  }

  Status CheckShape(const TensorBytes& tensor, ElementType type, std::optional<int64_t> length) const {
    if (tensor.type == type && tensor.shape.size() == 1 && (!length || tensor.shape[0] == *length)) return {};
    return Fail(ErrorCode::kDocumentColumn,
                fmt::format("column {} must be {} of one dimension{}", tensor.name, ToText(type),
                            length ? fmt::format(" and {} values", *length) : ""),
                name_);
  }
  template <class T>
  static void Copy(const TensorBytes& tensor, int64_t begin, int64_t end, std::vector<T>& out) {
    out.resize(static_cast<size_t>(end - begin));
    if (begin < end) std::memcpy(out.data(), tensor.bytes.data() + begin * int64_t{sizeof(T)}, out.size() * sizeof(T));
  }

  Status AddNext(DocumentSet& documents) {
    const int64_t number = position_.offset;
    const std::string where = fmt::format("{} document {}", name_, number);
    std::vector<int64_t> ends;
    Copy(*offsets_, number, number + 2, ends);
    if (ends[0] < 0 || ends[1] < ends[0] || ends[1] > tokens_->shape[0] || (number == 0 && ends[0] != 0))
      return Fail(ErrorCode::kDocumentValue,
                  fmt::format("column offsets: {} to {} is no range of {} tokens", ends[0], ends[1], tokens_->shape[0]),
                  where);
    if (number + 2 == offsets_->shape[0] && ends[1] != tokens_->shape[0])
      return Fail(ErrorCode::kDocumentValue,
                  fmt::format("column offsets ends with {}, and there are {} tokens", ends[1], tokens_->shape[0]),
                  where);
    DocumentSource source;
    source.file = position_.file;
    source.offset = number;
    source.line = number + 1;
    source.counts.documents = 1;
    source.counts.tokens = ends[1] - ends[0];
    Copy(*tokens_, ends[0], ends[1], document_.tokens);
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      if (columns_[c] != nullptr) Copy(*columns_[c], ends[0], ends[1], document_.columns[c]);
    }
    std::optional<Problem> problem = CheckDocument(document_, options_);
    if (!problem && valid_ != nullptr) {
      std::vector<int32_t> valid;
      Copy(*valid_, number, number + 1, valid);
      if (valid[0] < 0 || valid[0] > source.counts.tokens) {
        problem = Problem{ErrorCode::kDocumentValue,
                          fmt::format("{} is {}, of {} tokens", valid_->name, valid[0], source.counts.tokens)};
      } else {
        document_ = Slice(document_, 0, valid[0], &source.counts);
      }
    }
    if (document_.tokens.empty()) source.counts.empty = 1;
    const auto place = (static_cast<uint64_t>(source.file) << 48U) ^ static_cast<uint64_t>(number);
    if (!problem) problem = AddDocument(document_, options_, place, source, documents);
    if (problem) return Fail(problem->code, std::move(problem->text), where);
    return {};
  }

  MappedFile file_;
  std::string name_;
  const DocumentOptions& options_;
  ReadPosition position_;
  TensorFileView view_;
  const TensorBytes* tokens_ = nullptr;
  const TensorBytes* offsets_ = nullptr;
  const TensorBytes* valid_ = nullptr;
  std::array<const TensorBytes*, kNumTokenColumns> columns_ = {};
  Document document_;
};

DocumentReader::DocumentReader(std::vector<std::string> files, const DocumentOptions& options, ReadPosition position)
    : files_(std::move(files)), options_(options), position_(position) {}

DocumentReader::~DocumentReader() = default;

Result<std::unique_ptr<DocumentReader::Source>> DocumentReader::Open(const std::string& file,
                                                                     const DocumentOptions& options,
                                                                     const ReadPosition& position) {
  if (IsTokenShard(file)) {
    MappedFile mapped = TESSERA_TRY(MappedFile::Open(file));
    auto source = std::make_unique<ShardSource>(std::move(mapped), file, options, position);
    TESSERA_TRY(source->Check());
    return source;
  }
  if (file.find('\0') != std::string::npos) return ReadError(file.c_str(), "its name holds a zero byte");
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return ReadError(file, Reason(errno));
  auto source = std::make_unique<LineSource>(fd, file, options, position);
  TESSERA_TRY(source->Check());
  return source;
}

Result<bool> DocumentReader::Next(DocumentSet& documents) {
  while (position_.file < static_cast<int64_t>(files_.size())) {
    if (!source_) source_ = TESSERA_TRY(Open(files_[static_cast<size_t>(position_.file)], options_, position_));
    if (TESSERA_TRY(source_->Next(documents))) return true;
    source_.reset();
    position_ = {.file = position_.file + 1};
  }
  return false;
}

bool IsTokenShard(std::string_view file) { return file.ends_with(".safetensors"); }

}  // namespace tessera::rows
