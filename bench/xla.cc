#include <fmt/format.h>
#include <cstdlib>
#include "xla/peer.h"
using namespace tessera;
using namespace tessera::bench;
int main(int argc, char** argv) {
  lanes::xla::Session session;
  const Decision d = lanes::xla::OpenSession({}, TargetKind::kCpu, &session);
  if (!d.accepted) { fmt::print("{}\n", d.detail); return 2; }
  Settings settings; settings.tokens = argc > 1 ? atoi(argv[1]) : 2048; settings.lane = "xla_chunked";
  const bool dense = argc <= 2 || std::string(argv[2]) != "nodense";
  for (Case shape : {Case{.name="window", .mask=MaskKind::kWindow, .dim=64,.heads=4,.kv_heads=4,.left=511},
                     Case{.name="documents", .mask=MaskKind::kDocuments, .dim=64,.heads=4,.kv_heads=4,.documents=settings.tokens/512},
                     Case{.name="causal", .mask=MaskKind::kCausal, .dim=64,.heads=4,.kv_heads=4}}) {
    Result<Problem> p = MakeProblem(shape, settings);
    if (!p) { fmt::print("{}\n", ToText(p.error())); return 2; }
    for (Mode mode : kModes) {
      Result<DensePeer> peer = DensePeer();
      if (dense) { peer = DensePeer::Compile(session, DenseSpecOf(*p), mode);
      if (!peer) { fmt::print("{}\n", ToText(peer.error())); return 2; } 
      fmt::print("dense temp {} MiB\n", *peer->TempBytes() >> 20); }
      for (int i = 0; i < 3; ++i) {
        Result<Times> t = RunOurs(*p, mode, settings);
        if (!t) { fmt::print("{}\n", ToText(t.error())); return 2; }
        if (i == 0) fmt::print("{} {} temp {} {} KiB\n", t->receipt.xla_forward.source, t->receipt.xla_forward.opcodes, t->receipt.xla_forward.temp_bytes>>10, t->receipt.xla_backward.temp_bytes>>10);
        Result<double> s = 0.0;
        if (dense) { s = peer->Run(*p); if (!s) { fmt::print("{}\n", ToText(s.error())); return 2; } }
        fmt::print("{} {} ours f {:.3f} b {:.3f} dense {:.3f} ratio {:.2f}\n", shape.name, ToText(mode), t->forward_s, t->backward_s, *s, *s / t->total_s());
        if (dense && i==2) { Difference diff = Compare(*p, peer->outputs()); fmt::print("{} {} {} {}\n", diff.agrees, diff.tensor, diff.largest, diff.tolerance); }
        fflush(stdout);
      }
    }
  }
}
