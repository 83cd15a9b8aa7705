// An entry is a header and the program's bytes, little-endian:
//   magic (8 bytes) · format version (u32) · header size (u32) · program size (u64) · XXH3-128 of the program (16
//   bytes) then the key: for each of its four parts and the layout a size (u32) and the text.
// The header follows from the key and the program alone, so every byte of a file is either checked or hashed.
#include "lanes/xla/store/program_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/hash.h"
#include "io/file.h"
#include "tessera/error.h"

namespace tessera::lanes::xla {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic{"TSRPROG\0", 8};
constexpr uint32_t kFormatVersion = 2;
constexpr std::string_view kEnding = ".program";
constexpr size_t kNameSize = 32 + kEnding.size();
// A temporary file that is older was left by a process that was killed.
constexpr std::time_t kTemporarySeconds = 3600;

// The part of the header before the key, in the order of the file.
struct FixedHeader {
  std::array<char, 8> magic;
  uint32_t format_version;
  uint32_t header_bytes;
  uint64_t program_bytes;
  std::array<uint8_t, 16> program_hash;
};
static_assert(sizeof(FixedHeader) == 40, "no padding: the struct is the file's bytes");

struct NamedPart {
  const char* name;
  const std::string& text;
};

constexpr size_t kNumNameParts = 4;  // the first are also those of the entry's name
constexpr int64_t kMostKeyBytes = (kNumNameParts + 1) * (int64_t{sizeof(uint32_t)} + kMaxProgramKeyBytes);

std::array<NamedPart, kNumNameParts + 1> PartsOf(const ProgramKey& key) {
  return {{{"program", key.program},
           {"options", key.options},
           {"plugin", key.plugin},
           {"host", key.host},
           {"layout", key.layout}}};
}

std::string SystemReason(int error_number) { return std::generic_category().message(error_number); }

std::string EntryName(const ProgramKey& key) {
  Hasher hasher;
  hasher.Text(kMagic);  // not the version: an older entry is found, passed over and replaced
  const auto parts = PartsOf(key);
  for (size_t i = 0; i < kNumNameParts; ++i) hasher.Text(parts[i].text);
  return Hex(hasher.Finish()) + std::string(kEnding);
}

// Why this key has no entry, or nothing.
std::string KeyProblem(const ProgramKey& key) {
  for (const NamedPart& part : PartsOf(key)) {
    if (static_cast<int64_t>(part.text.size()) > kMaxProgramKeyBytes)
      return fmt::format("the key's {} part has {} bytes, more than the {} allowed", part.name, part.text.size(),
                         kMaxProgramKeyBytes);
  }
  return {};
}

std::array<uint8_t, 16> HashOf(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.Bytes(bytes.data(), bytes.size());
  return hasher.Finish();
}

std::string KeyBytes(const ProgramKey& key) {
  std::string bytes;
  for (const NamedPart& part : PartsOf(key)) {
    const auto size = static_cast<uint32_t>(part.text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += part.text;
  }
  return bytes;
}

std::string EntryBytes(const ProgramKey& key, std::span<const std::byte> program) {
  const std::string key_bytes = KeyBytes(key);
  FixedHeader header{};
  std::memcpy(header.magic.data(), kMagic.data(), kMagic.size());
  header.format_version = kFormatVersion;
  header.header_bytes = static_cast<uint32_t>(sizeof(header) + key_bytes.size());
  header.program_bytes = program.size();
  header.program_hash = HashOf(program);
  std::string bytes;
  bytes.reserve(header.header_bytes + program.size());
  bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += key_bytes;
  bytes.append(reinterpret_cast<const char*>(program.data()), program.size());
  return bytes;
}

std::string LayoutText(std::string_view layout) { return layout.empty() ? "one device" : std::string(layout); }

// Which part of the key in a file is another one's; the sizes in it are not trusted.
std::string ForeignPart(std::string_view key_bytes, const ProgramKey& key) {
  for (const NamedPart& part : PartsOf(key)) {
    uint32_t size = 0;
    if (key_bytes.size() >= sizeof(size)) std::memcpy(&size, key_bytes.data(), sizeof(size));
    const bool is_whole = key_bytes.size() >= sizeof(size) + size;
    if (&part.text == &key.layout && is_whole && key_bytes.size() == sizeof(size) + size &&
        key_bytes.substr(sizeof(size)) != part.text) {
      return fmt::format("{}: {} ({}, and now {})", CodeText(ErrorCode::kShardStale),
                         CodeMeaning(ErrorCode::kShardStale), LayoutText(key_bytes.substr(sizeof(size))),
                         LayoutText(part.text));
    }
    if (!is_whole || key_bytes.substr(sizeof(size), size) != part.text)
      return fmt::format("it belongs to another key: its {} part is another", part.name);
    key_bytes.remove_prefix(sizeof(size) + size);
  }
  return "it belongs to another key: there is more in it";
}

class EntryFile {
 public:
  // Only a regular file: nothing that could wait, be a device or lie outside the folder.
  explicit EntryFile(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)), error_(errno) {}
  ~EntryFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  EntryFile(const EntryFile&) = delete;
  EntryFile& operator=(const EntryFile&) = delete;
  int fd() const { return fd_; }
  int error() const { return error_; }
  // Reads until the buffer is full; false with a reason when the file ends before, or fails.
  bool Fill(void* data, size_t size, std::string& reason) {
    auto* to = static_cast<char*>(data);
    while (size > 0) {
      const ssize_t got = ::read(fd_, to, size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        reason = got < 0 ? SystemReason(errno) : "it ends early";
        return false;
      }
      to += got;
      size -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  int fd_;
  int error_;
};

// Why the version of an entry of this many bytes or the size of its header is wrong, or nothing.
std::string HeaderProblem(const FixedHeader& header, int64_t file_bytes) {
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic) return "it is not a compiled program";
  if (header.format_version != kFormatVersion)
    return fmt::format("it has format {}, and this version writes {}", header.format_version, kFormatVersion);
  if (header.header_bytes > static_cast<uint64_t>(file_bytes)) return "it ends early";
  return {};
}

// Why the key behind the header is another one's, or nothing.
std::string KeyDifference(std::string_view found, const ProgramKey& key) {
  const std::string expected = KeyBytes(key);
  if (found == expected) return {};
  std::string foreign = ForeignPart(found, key);
  if (found.size() == expected.size() || foreign.starts_with(CodeText(ErrorCode::kShardStale))) return foreign;
  return fmt::format("it belongs to another key: its header has {} bytes, expected {}",
                     sizeof(FixedHeader) + found.size(), sizeof(FixedHeader) + expected.size());
}

std::string ProgramSizeProblem(const FixedHeader& header, int64_t file_bytes) {
  const uint64_t have = static_cast<uint64_t>(file_bytes) - header.header_bytes;
  if (header.program_bytes != have)
    return fmt::format("it holds {} bytes after its header, which speaks of {}", have, header.program_bytes);
  return {};
}

// Fills `result.bytes`, or says why not.
void ReadEntry(const std::string& path, const ProgramKey& key, FindResult& result) {
  EntryFile file(path);
  if (file.fd() < 0) {
    if (file.error() != ENOENT) result.reason = SystemReason(file.error());
    return;
  }
  struct stat info {};
  if (::fstat(file.fd(), &info) != 0 || !S_ISREG(info.st_mode)) {
    result.reason = "it is not a file";
    return;
  }
  const auto file_bytes = static_cast<int64_t>(info.st_size);
  if (file_bytes > kMaxStoredProgramBytes) {
    result.reason = fmt::format("it has {} bytes, more than the {} allowed", file_bytes, kMaxStoredProgramBytes);
    return;
  }
  FixedHeader header{};
  if (!file.Fill(&header, sizeof(header), result.reason)) return;
  result.reason = HeaderProblem(header, file_bytes);
  if (!result.reason.empty()) return;
  const int64_t key_bytes = int64_t{header.header_bytes} - int64_t{sizeof(header)};
  if (key_bytes < 0 || key_bytes > kMostKeyBytes) {
    result.reason = fmt::format("it belongs to another key: its header has {} bytes", header.header_bytes);
    return;
  }
  std::string found_key(static_cast<size_t>(key_bytes), '\0');
  if (!file.Fill(found_key.data(), found_key.size(), result.reason)) return;
  result.reason = KeyDifference(found_key, key);
  if (result.reason.empty()) result.reason = ProgramSizeProblem(header, file_bytes);
  if (!result.reason.empty()) return;
  std::vector<std::byte> bytes(header.program_bytes);
  if (!file.Fill(bytes.data(), bytes.size(), result.reason)) return;
  if (HashOf(bytes) != header.program_hash) {
    result.reason = "its bytes are not those that were stored";
    return;
  }
  // Found now: it stays longer. A folder that may only be read does without.
  const std::array<timespec, 2> times{timespec{0, UTIME_OMIT}, timespec{0, UTIME_NOW}};
  ::futimens(file.fd(), times.data());
  result.bytes = std::move(bytes);
}

struct Entry {
  std::string path;
  int64_t bytes = 0;
  timespec used{};
};

bool IsOlder(const Entry& a, const Entry& b) {
  if (a.used.tv_sec != b.used.tv_sec) return a.used.tv_sec < b.used.tv_sec;
  if (a.used.tv_nsec != b.used.tv_nsec) return a.used.tv_nsec < b.used.tv_nsec;
  return a.path < b.path;
}

// The folder's entries; what killed writers left behind is removed on the way. Another process may change the folder
// meanwhile: what is gone is gone.
std::vector<Entry> ListEntries(const std::string& folder) {
  std::vector<Entry> entries;
  const std::time_t now = std::time(nullptr);
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    const std::string name = it->path().filename().string();
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    if (name.size() == kNameSize && name.ends_with(kEnding)) {
      entries.push_back({path, static_cast<int64_t>(info.st_size), info.st_mtim});
    } else if (name.starts_with(".tessera-") && name.ends_with(".tmp") &&
               info.st_mtim.tv_sec + kTemporarySeconds < now) {
      ::unlink(path.c_str());
    }
  }
  return entries;
}

// Removes the entries unused for longest until the rest fits, sparing `keep`, the one that was just stored.
int64_t MakeRoom(const std::string& folder, const std::string& keep, int64_t max_bytes) {
  std::vector<Entry> entries = ListEntries(folder);
  int64_t total = 0;
  for (const Entry& entry : entries) total += entry.bytes;
  if (total <= max_bytes) return 0;
  std::sort(entries.begin(), entries.end(), IsOlder);
  int64_t num_removed = 0;
  for (const Entry& entry : entries) {
    if (total <= max_bytes) break;
    if (entry.path == keep) continue;
    if (::unlink(entry.path.c_str()) == 0) ++num_removed;
    total -= entry.bytes;  // gone also when another process was faster
  }
  return num_removed;
}

// What cannot be replaced by writing is taken away first: a link, or a file without the right to write it.
void ClearWay(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return;
  if (!S_ISREG(info.st_mode) || ::access(path.c_str(), W_OK) != 0) ::unlink(path.c_str());
}

}  // namespace

ProgramStore::ProgramStore(std::string folder, int64_t max_bytes)
    : folder_(std::move(folder)), max_bytes_(std::max(max_bytes, int64_t{0})) {}

std::string ProgramStore::EntryPath(const ProgramKey& key) const { return folder_ + "/" + EntryName(key); }

FindResult ProgramStore::Find(const ProgramKey& key) const {
  FindResult result{{}, KeyProblem(key)};
  if (max_bytes_ == 0 || !result.reason.empty()) return result;
  const std::string path = EntryPath(key);
  try {
    ReadEntry(path, key, result);
  } catch (const std::bad_alloc&) {
    result.reason = "it does not fit in memory";
  }
  if (!result.reason.empty()) result.reason = fmt::format("{} was passed over: {}", path, result.reason);
  return result;
}

PutResult ProgramStore::Put(const ProgramKey& key, std::span<const std::byte> bytes) const {
  PutResult result;
  const auto refuse = [&](std::string why) {
    result.reason = "the compiled program was not stored: " + std::move(why);
    return result;
  };
  if (max_bytes_ == 0) return refuse("the store's limit is 0 bytes");
  if (std::string why = KeyProblem(key); !why.empty()) return refuse(std::move(why));
  try {
    const std::string entry = EntryBytes(key, bytes);
    const int64_t limit = std::min(max_bytes_, kMaxStoredProgramBytes);
    if (static_cast<int64_t>(entry.size()) > limit)
      return refuse(fmt::format("it takes {} bytes, more than the {} allowed", entry.size(), limit));
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) return refuse(fmt::format("{}: {}", folder_, error.message()));
    const std::string path = EntryPath(key);
    ClearWay(path);
    if (const Status written = WriteFile(path, entry); !written) return refuse(ToText(written.error()));
    result.is_stored = true;
    result.num_removed = MakeRoom(folder_, path, max_bytes_);
  } catch (const std::bad_alloc&) {
    return refuse("it does not fit in memory");
  }
  return result;
}

}  // namespace tessera::lanes::xla
