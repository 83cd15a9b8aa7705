// See mapped_file.h.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "io/limits.h"

namespace tessera {

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return Fail(ErrorCode::kFileRead, "cannot read the file: " + why, path);
  };
  const auto reason = [](int number) { return std::generic_category().message(number); };
  if (path.find('\0') != std::string::npos) return refuse("its name holds a zero byte");
  struct stat info {};
  // Looked at before it is opened, because opening a device or a pipe can have effects of its own.
  if (::stat(path.c_str(), &info) != 0) return refuse(reason(errno));
  if (S_ISDIR(info.st_mode)) return refuse(reason(EISDIR));
  if (!S_ISREG(info.st_mode)) return refuse("it is no regular file, which alone can be mapped");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) return refuse(reason(errno));
  MappedFile file;
  int error = ::fstat(fd, &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(info.st_mode)) error = EINVAL;
  if (error == 0 && info.st_size > kMaxFileBytes) error = EFBIG;
  if (error == 0 && info.st_size > 0) {
    file.size_ = static_cast<size_t>(info.st_size);
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      error = errno;
      file.size_ = 0;
    } else {
      file.data_ = static_cast<const char*>(data);
    }
  }
  ::close(fd);
  if (error != 0) return refuse(reason(error));
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tessera
