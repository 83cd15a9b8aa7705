// A library that computes the same attention, in a process of its own so that nothing of ours slows it: bench_cpu
// talks to bench/peers/cpu_attention.py over pipes and lets its runs and ours take turns.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpu/problem.h"

namespace tessera::bench {

struct PeerInfo {
  std::string name;     // "sdpa": what rules, options and JSON call it
  std::string title;    // "PyTorch fused SDPA"
  std::string version;  // empty when it is not there
  std::string missing;  // why not; empty when it is
};

class Peer {
 public:
  // Starts the process; info().missing says when there is nothing to talk to.
  Peer(std::string name, const std::string& python, int64_t threads, std::string folder);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const PeerInfo& info() const { return info_; }
  // Hands the case over. Afterwards Skipped says for each mode why it cannot run; empty = it can.
  void Prepare(const Problem& problem, const std::string& inputs_path);
  const std::string& Skipped(Mode mode) const { return skipped_.at(mode); }
  const std::string& How(Mode mode) const { return how_.at(mode); }  // which of the library's functions runs
  Result<double> Run(Mode mode);                                     // seconds
  Result<TensorMap> Outputs(Mode mode);
  // The rate of a large matrix product, 0 where the library has none to offer.
  double MatmulGflops(DType dtype);

 private:
  struct Reply;
  Reply Ask(const std::string& request);
  std::string LastWords() const;  // of a process that ended: the last line on its standard error

  PeerInfo info_;
  std::string folder_;
  std::map<Mode, std::string> how_;
  std::map<Mode, std::string> skipped_;
  pid_t child_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string read_;  // what came after the last reply's end of line
};

// The names, in the order of the table's columns.
const std::vector<std::string>& PeerNames();
// All of them, each started; `folder` holds the files they read and write.
std::vector<std::unique_ptr<Peer>> StartPeers(const std::string& python, int64_t threads, const std::string& folder);

}  // namespace tessera::bench
