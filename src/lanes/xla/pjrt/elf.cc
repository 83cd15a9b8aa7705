#include "lanes/xla/pjrt/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/hash.h"

namespace tessera::pjrt {
namespace {

#if defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#elif defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__riscv)
constexpr uint16_t kMachine = EM_RISCV;
#elif defined(__powerpc64__)
constexpr uint16_t kMachine = EM_PPC64;
#else
constexpr uint16_t kMachine = EM_NONE;
#endif

std::string MachineText(uint16_t machine) {
  switch (machine) {
    case EM_AARCH64:
      return "aarch64";
    case EM_X86_64:
      return "x86-64";
    case EM_RISCV:
      return "riscv";
    case EM_PPC64:
      return "ppc64";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    default:
      return fmt::format("ELF machine {}", machine);
  }
}

// Opening waits for nobody: a named pipe without a writer would make everyone wait who lists plugins.
class File {
 public:
  explicit File(const std::string& path)
      : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)), error_(errno) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  bool is_open() const { return descriptor_ >= 0; }
  int open_error() const { return error_; }
  int descriptor() const { return descriptor_; }
  bool Read(void* into, size_t size, uint64_t offset) const {
    char* at = static_cast<char*>(into);
    while (size > 0) {
      const ssize_t got = pread(descriptor_, at, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      offset += static_cast<uint64_t>(got);
      size -= static_cast<size_t>(got);
    }
    return true;
  }

 private:
  int descriptor_;
  int error_;
};

tl::unexpected<Error> Unusable(std::string message, const std::string& path) {
  return Fail(ErrorCode::kPluginUnusable, std::move(message), path);
}

tl::unexpected<Error> Truncated(const std::string& what, uint64_t size, const std::string& path) {
  return Unusable(fmt::format("the file is truncated: its {} would reach beyond its {} bytes", what, size), path);
}

// offset + count * each <= size, without wrapping.
bool Fits(uint64_t offset, uint64_t count, uint64_t each, uint64_t size) {
  uint64_t bytes = 0;
  return !__builtin_mul_overflow(count, each, &bytes) && offset <= size && bytes <= size - offset;
}

Result<uint64_t> SizeOf(const File& file, const std::string& path) {
  if (!file.is_open()) return Unusable(fmt::format("cannot open it: {}", std::strerror(file.open_error())), path);
  struct stat facts = {};
  if (fstat(file.descriptor(), &facts) != 0) return Unusable(fmt::format("no status: {}", std::strerror(errno)), path);
  if (!S_ISREG(facts.st_mode)) return Unusable("a plugin is a shared library file; this is none", path);
  return static_cast<uint64_t>(facts.st_size);
}

Status CheckSegments(const File& file, const Elf64_Ehdr& header, uint64_t size, const std::string& path) {
  if (header.e_phentsize != sizeof(Elf64_Phdr) || !Fits(header.e_phoff, header.e_phnum, sizeof(Elf64_Phdr), size)) {
    return Truncated("program headers", size, path);
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (!file.Read(segments.data(), segments.size() * sizeof(Elf64_Phdr), header.e_phoff)) {
    return Truncated("program headers", size, path);
  }
  for (const Elf64_Phdr& segment : segments) {
    if (!Fits(segment.p_offset, segment.p_filesz, 1, size)) return Truncated("segments", size, path);
  }
  return {};
}

// Sections are not loaded, but their table is the last thing in a file: it tells of a file cut anywhere.
Status CheckSections(const File& file, const Elf64_Ehdr& header, uint64_t size, const std::string& path) {
  if (header.e_shoff == 0) return {};
  if (header.e_shentsize != sizeof(Elf64_Shdr) || !Fits(header.e_shoff, header.e_shnum, sizeof(Elf64_Shdr), size)) {
    return Truncated("section headers", size, path);
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!file.Read(sections.data(), sections.size() * sizeof(Elf64_Shdr), header.e_shoff)) {
    return Truncated("section headers", size, path);
  }
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
        !Fits(section.sh_offset, section.sh_size, 1, size)) {
      return Truncated("sections", size, path);
    }
  }
  return {};
}

}  // namespace

Status CheckSharedObject(const std::string& path) {
  const File file(path);
  const Result<uint64_t> size = SizeOf(file, path);
  if (!size) return tl::unexpected(size.error());
  Elf64_Ehdr header = {};
  unsigned char* ident = header.e_ident;
  const size_t have = std::min<uint64_t>(*size, sizeof(header));
  if (!file.Read(&header, have, 0)) return Unusable(fmt::format("cannot read it: {}", std::strerror(errno)), path);
  if (have < SELFMAG || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
    return Unusable(fmt::format("not a shared library: its {} bytes do not begin with the ELF magic number", *size),
                    path);
  }
  if (have < sizeof(header)) return Truncated("ELF header", *size, path);
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB) {
    return Unusable("a library of another kind of machine: expected 64-bit little-endian", path);
  }
  if (kMachine != EM_NONE && header.e_machine != kMachine) {
    const std::string machine = MachineText(header.e_machine);
    return Unusable(fmt::format("built for {}; this program is {}. One built for {} can load it, on such a machine or "
                                "under emulation",
                                machine, MachineText(kMachine), machine),
                    path);
  }
  if (header.e_type != ET_DYN) return Unusable("an ELF file, but no shared library", path);
  if (Status ok = CheckSegments(file, header, *size, path); !ok) return ok;
  return CheckSections(file, header, *size, path);
}

Result<std::string> ContentName(const std::string& path) {
  constexpr uint64_t kEnd = uint64_t{1} << 16;
  constexpr uint64_t kSample = 4096;
  constexpr uint64_t kSamples = 64;
  const File file(path);
  const Result<uint64_t> size = SizeOf(file, path);
  if (!size) return tl::unexpected(size.error());
  Hasher hasher;
  hasher.Int(static_cast<int64_t>(*size));
  std::vector<char> bytes;
  const auto add = [&](uint64_t offset, uint64_t count) {
    bytes.resize(count);
    if (!file.Read(bytes.data(), count, offset)) return false;
    hasher.Bytes(bytes.data(), count);
    return true;
  };
  bool ok = add(0, std::min(*size, kEnd)) && add(*size - std::min(*size, kEnd), std::min(*size, kEnd));
  for (uint64_t i = 1; ok && i <= kSamples && *size > kEnd; ++i) {
    const uint64_t offset = *size / (kSamples + 1) * i;
    ok = add(offset, std::min(kSample, *size - offset));
  }
  if (!ok) return Unusable("the file changed while it was read", path);
  return Hex(hasher.Finish());
}

}  // namespace tessera::pjrt
