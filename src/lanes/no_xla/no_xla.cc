// What an engine asks of the XLA family in a build without it: there is nothing to keep, no plugin is ever asked, and
// so none needs the guard.
#include "lanes/xla/xla.h"
#include "tessera/cpu_guard.h"

namespace tessera {

namespace lanes::xla {
struct State {};
}  // namespace lanes::xla

std::shared_ptr<lanes::xla::State> MakeXlaState(XlaSettings) { return std::make_shared<lanes::xla::State>(); }
std::vector<PluginReport> ReportPlugins(lanes::xla::State&, const std::string&) { return {}; }
CpuGuard AskCpuGuard() { return {}; }
void ReexecWithCpuGuard(char**) {}

}  // namespace tessera
