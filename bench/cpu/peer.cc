#include "cpu/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

namespace tessera::bench {
namespace {

using Json = nlohmann::json;

constexpr int kPatienceMs = 900'000;  // the longest a reply may take: one slow run, or compiling

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe MakePipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  return {ends[0], ends[1]};
}

void Close(int& file) {
  if (file >= 0) ::close(file);
  file = -1;
}

std::string_view MaskName(MaskKind mask) {
  switch (mask) {
    case MaskKind::kWindow:
      return "window";
    case MaskKind::kDocuments:
    case MaskKind::kRandomDocuments:
      return "documents";
    default:
      return "causal";
  }
}

}  // namespace

struct Peer::Reply {
  Json body;           // {"ok": true, ...}
  std::string reason;  // when not ok
};

Peer::Peer(std::string name, const std::string& python, int64_t threads, std::string folder)
    : folder_(std::move(folder)) {
  info_.name = std::move(name);
  info_.title = info_.name;
  for (const Mode mode : kModes) {
    skipped_[mode] = "not prepared";
    how_[mode] = "";
  }
  Pipe to = MakePipe();
  Pipe from = MakePipe();
  const std::string errors = folder_ + "/" + info_.name + ".stderr";
  const std::string count = std::to_string(threads);
  const std::string cannot = fmt::format("cannot run {}\n", python);
  // All of this before the fork: the child may only exec.
  const char* arguments[] = {python.c_str(), "-B",   TESSERA_CPU_PEER_SCRIPT, info_.name.c_str(), "--threads",
                             count.c_str(),  nullptr};
  std::fflush(nullptr);
  child_ = to.read < 0 || from.read < 0 ? -1 : ::fork();
  if (child_ == 0) {
    const int error_file = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(to.read, STDIN_FILENO);
    ::dup2(from.write, STDOUT_FILENO);
    if (error_file >= 0) ::dup2(error_file, STDERR_FILENO);
    ::setenv("OMP_NUM_THREADS", count.c_str(), 1);
    ::execvp(arguments[0], const_cast<char* const*>(arguments));
    [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, cannot.data(), cannot.size());
    ::_exit(127);
  }
  Close(to.read);
  Close(from.write);
  to_ = to.write;
  from_ = from.read;
  if (child_ < 0) {
    info_.missing = "cannot start a process";
    return;
  }
  Reply hello = Ask(R"({"op": "hello"})");
  info_.missing = hello.reason;
  if (!info_.missing.empty()) return;
  info_.title = hello.body.value("title", info_.name);
  info_.version = hello.body.value("version", "");
}

Peer::~Peer() {
  Close(to_);  // it ends when its input does
  Close(from_);
  if (child_ > 0) ::waitpid(child_, nullptr, 0);
}

std::string Peer::LastWords() const {
  const Result<std::string> text = ReadFile(folder_ + "/" + info_.name + ".stderr");
  if (!text) return "said nothing";
  const size_t end = text->find_last_not_of("\n ");
  if (end == std::string::npos) return "said nothing";
  const size_t begin = text->rfind('\n', end);
  return text->substr(begin == std::string::npos ? 0 : begin + 1,
                      end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

Peer::Reply Peer::Ask(const std::string& request) {
  const auto gone = [&](std::string_view what) {
    Close(to_);
    return Reply{{}, fmt::format("its process {}: {}", what, LastWords())};
  };
  if (to_ < 0) return gone("has ended");
  const std::string line = request + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t wrote = ::write(to_, line.data() + sent, line.size() - sent);
    if (wrote <= 0) return gone("has ended");
    sent += static_cast<size_t>(wrote);
  }
  while (read_.find('\n') == std::string::npos) {
    pollfd wait{from_, POLLIN, 0};
    const int ready = ::poll(&wait, 1, kPatienceMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      ::kill(child_, SIGKILL);
      return gone("gave no answer in a quarter of an hour");
    }
    char chunk[4096];
    const ssize_t got = ::read(from_, chunk, sizeof(chunk));
    if (got <= 0) return gone("has ended");
    read_.append(chunk, static_cast<size_t>(got));
  }
  const size_t end = read_.find('\n');
  Json body = Json::parse(read_.substr(0, end), nullptr, false);
  read_.erase(0, end + 1);
  if (!body.is_object()) return gone("answered something that is not JSON");
  std::string reason;
  if (!body.value("ok", false)) reason = body.value("reason", "no reason given");
  return {std::move(body), std::move(reason)};
}

void Peer::Prepare(const Problem& problem, const std::string& inputs_path) {
  const Case& shape = problem.shape;
  for (const Mode mode : kModes) skipped_[mode] = info_.missing;
  if (!info_.missing.empty()) return;
  const Json request = {{"op", "prepare"},
                        {"inputs", inputs_path},
                        {"case",
                         {{"tokens", shape.tokens},
                          {"heads", shape.heads},
                          {"kv_heads", shape.kv_heads},
                          {"dim", shape.dim},
                          {"dtype", ToText(shape.dtype)},
                          {"mask", MaskName(shape.mask)},
                          {"window", shape.window()},
                          {"document_lengths", problem.document_lengths},
                          {"softcap", shape.softcap}}}};
  Reply reply = Ask(request.dump());
  for (const Mode mode : kModes) {
    const std::string name(ToText(mode));
    how_[mode] = reply.reason.empty() ? reply.body.value("how", Json::object()).value(name, "") : "";
    skipped_[mode] = reply.reason.empty() ? reply.body.value("modes", Json::object()).value(name, "") : reply.reason;
  }
}

Result<double> Peer::Run(Mode mode) {
  Reply reply = Ask(Json{{"op", "run"}, {"mode", ToText(mode)}}.dump());
  if (!reply.reason.empty()) return Fail(ErrorCode::kBadArgument, reply.reason, info_.name);
  return reply.body.value("seconds", 0.0);
}

Result<TensorMap> Peer::Outputs(Mode mode) {
  const std::string path = folder_ + "/" + info_.name + ".safetensors";
  Reply reply = Ask(Json{{"op", "outputs"}, {"mode", ToText(mode)}, {"file", path}}.dump());
  if (!reply.reason.empty()) return Fail(ErrorCode::kBadArgument, reply.reason, info_.name);
  return ReadSafetensors(path);
}

double Peer::MatmulGflops(DType dtype) {
  if (!info_.missing.empty()) return 0;
  return Ask(Json{{"op", "matmul"}, {"dtype", ToText(dtype)}}.dump()).body.value("gflops", 0.0);
}

const std::vector<std::string>& PeerNames() {
  static const std::vector<std::string> kNames{"sdpa", "unfused", "flex", "onnx"};
  return kNames;
}

std::vector<std::unique_ptr<Peer>> StartPeers(const std::string& python, int64_t threads, const std::string& folder) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (const std::string& name : PeerNames()) peers.push_back(std::make_unique<Peer>(name, python, threads, folder));
  return peers;
}

}  // namespace tessera::bench
