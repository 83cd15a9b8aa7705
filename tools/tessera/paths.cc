// See paths.h.
#include "paths.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "tessera/named_files.h"

namespace tessera::program {
namespace {

namespace fs = std::filesystem;

// A file by device and inode; one that does not exist yet by the nearest folder that does and the way from there.
struct Identity {
  uint64_t device = 0;
  uint64_t inode = 0;
  std::string rest;
  bool is_stream = false;  // a device or a pipe: it holds nothing, and takes what several write
  bool operator==(const Identity& other) const {
    return device == other.device && inode == other.inode && rest == other.rest;
  }
};

Identity Of(const struct stat& info) {
  return {.device = static_cast<uint64_t>(info.st_dev),
          .inode = static_cast<uint64_t>(info.st_ino),
          .rest = {},
          .is_stream = !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)};
}

constexpr int kMostSteps = 1000;  // links and missing folders between a name and something that exists

Identity Identify(const std::string& name) {
  std::string path = name;
  std::string rest;
  const auto join = [&](const std::string& base) { return rest.empty() ? base : base + "/" + rest; };
  for (int step = 0; step < kMostSteps; ++step) {
    struct stat info {};
    if (::stat(path.empty() ? "." : path.c_str(), &info) == 0) {
      Identity identity = Of(info);
      identity.rest = rest.empty() ? rest : fs::path(rest).lexically_normal().string();
      return identity;
    }
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    std::error_code error;
    if (const fs::path link = fs::read_symlink(path, error); !error) {
      path = link.is_absolute() ? link.string() : folder + link.string();
      continue;
    }
    rest = join(slash == std::string::npos ? path : path.substr(slash + 1));
    path = folder;
  }
  return {.rest = name};  // a loop: nothing can be read or written there
}

struct Declared {
  NamedPath path;
  Identity identity;
  std::vector<Identity> contents = {};  // of a folder: the files of its suffix that are there
};

bool IsOutput(PathRole role) {
  return role == PathRole::kOutput || role == PathRole::kInPlace || role == PathRole::kFolder;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Whether a file may be one of those that are written into the folder.
bool IsInside(const Declared& folder, const Identity& file) {
  if (folder.identity == file) return true;
  const std::string prefix = folder.identity.rest.empty() ? "" : folder.identity.rest + "/";
  const bool is_below = file.device == folder.identity.device && file.inode == folder.identity.inode &&
                        file.rest.size() > prefix.size() && file.rest.substr(0, prefix.size()) == prefix;
  if (is_below && EndsWith(file.rest, folder.path.suffix)) return true;
  return std::find(folder.contents.begin(), folder.contents.end(), file) != folder.contents.end();
}

std::vector<Identity> ContentsOf(const NamedPath& folder) {
  std::vector<Identity> contents;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, ignored)) {
    const std::string name = entry.path().string();
    if (EndsWith(name, folder.suffix)) contents.push_back(Identify(name));
  }
  return contents;
}

bool Collide(const Declared& a, const Declared& b) {
  if (!IsOutput(a.path.role) && !IsOutput(b.path.role)) return false;
  if (a.path.role == PathRole::kFolder && b.path.role != PathRole::kFolder) {
    return a.path.name != b.path.name && IsInside(a, b.identity);
  }
  if (b.path.role == PathRole::kFolder && a.path.role != PathRole::kFolder) return Collide(b, a);
  return a.identity == b.identity && !a.identity.is_stream;
}

class PathTable {
 public:
  PathTable() {
    // What the program prints goes into a file too, when a shell says so.
    AddStream(STDOUT_FILENO, "standard output");
    AddStream(STDERR_FILENO, "standard error");
  }

  Status Add(NamedPath path) {
    if (path.path.empty()) return {};
    if (path.path == "-" && path.role != PathRole::kInputOrStandard) {
      return Refused(
          fmt::format("{} names no file: - is standard input, which only a contract is read from; "
                      "a file of that name is ./-",
                      path.name));
    }
    const bool is_standard = path.path == "-";
    struct stat info {};
    Declared added{std::move(path), {}, {}};
    if (!is_standard) {
      added.identity = Identify(added.path.path);
    } else if (::fstat(STDIN_FILENO, &info) == 0) {
      added.identity = Of(info);
    } else {
      return {};
    }
    if (added.path.role == PathRole::kFolder) added.contents = ContentsOf(added.path);
    const bool is_output = IsOutput(added.path.role);
    if (Status ok = Compare(added, outputs_); !ok) return ok;
    if (is_output) {
      if (Status ok = Compare(added, inputs_); !ok) return ok;
    }
    (is_output ? outputs_ : inputs_).push_back(std::move(added));
    return {};
  }

  bool is_refused() const { return is_refused_; }

 private:
  Status Compare(const Declared& added, const std::vector<Declared>& others) {
    for (const Declared& other : others) {
      if (!Collide(other, added)) continue;
      const bool is_input = !IsOutput(other.path.role) || !IsOutput(added.path.role);
      return Refused(
          fmt::format("{} and {} name the same file{}: {}", added.path.name, other.path.name,
                      added.path.path == "-" ? "" : ", " + added.path.path,
                      is_input ? "what is read would be written over" : "one would be written over the other"));
    }
    return {};
  }

  void AddStream(int fd, const char* name) {
    struct stat info {};
    if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
      outputs_.push_back({{.name = name, .path = name, .role = PathRole::kOutput}, Of(info)});
    }
  }

  tl::unexpected<Error> Refused(std::string message) {
    is_refused_ = true;
    return Fail(ErrorCode::kBadArgument, std::move(message), "tessera");
  }

  // Apart, since inputs may be many and do each other no harm.
  std::vector<Declared> outputs_;
  std::vector<Declared> inputs_;
  bool is_refused_ = false;
};

PathTable& ThePaths() {
  static PathTable paths;
  return paths;
}

// The path of "file PATH", as receipts write where something came from.
std::optional<std::string> FileOf(std::string_view source) {
  constexpr std::string_view kFile = "file ";
  if (source.substr(0, kFile.size()) != kFile) return std::nullopt;
  return std::string(source.substr(kFile.size()));
}

}  // namespace

Status DeclarePath(NamedPath path) { return ThePaths().Add(std::move(path)); }

Status DeclarePaths(std::vector<NamedPath> paths) {
  for (NamedPath& path : paths) {
    if (Status ok = DeclarePath(std::move(path)); !ok) return ok;
  }
  return {};
}

bool IsAnyPathRefused() { return ThePaths().is_refused(); }

Status DeclareBitmaps(std::string_view contract_text, const std::string& folder) {
  for (const std::string& name : BitmapFiles(contract_text)) {
    const std::string path = (fs::path(folder) / name).string();
    if (Status ok = DeclarePath({.name = "a bitmap of the contract", .path = path}); !ok) return ok;
  }
  return {};
}

Status DeclareSourcesOf(const Receipt& receipt) {
  std::vector<NamedPath> paths;
  const auto add = [&](const char* name, const std::string& path) { paths.push_back({.name = name, .path = path}); };
  const std::optional<std::string> contract = FileOf(receipt.contract_source);
  if (contract) add("the receipt's contract", *contract);
  if (const auto batch = FileOf(receipt.batch_source)) add("the receipt's batch", *batch);
  if (const auto inputs = FileOf(receipt.input_source)) add("the receipt's inputs", *inputs);
  add("the receipt's ledger", receipt.ledger.file);
  add("the receipt's plugin", receipt.device.plugin);
  if (const auto plugin = receipt.options.find("plugin"); plugin != receipt.options.end()) {
    add("the receipt's plugin", plugin->second);
  }
  if (Status ok = DeclarePaths(std::move(paths)); !ok) return ok;
  return DeclareBitmaps(receipt.contract_text, contract ? fs::path(*contract).parent_path().string() : "");
}

Status DeclareEnvironment() {
  for (std::string& file : FilesOfEnvironment()) {
    if (Status ok = DeclarePath({.name = "a file that the environment names", .path = std::move(file)}); !ok) return ok;
  }
  return {};
}

}  // namespace tessera::program
