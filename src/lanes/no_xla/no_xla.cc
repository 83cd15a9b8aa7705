// The XLA lane's public functions in a build without it: no plugin is ever asked, so none needs the guard.
#include "tessera/cpu_guard.h"
#include "tessera/xla.h"

namespace tessera {

std::vector<PluginReport> ReportPlugins(const XlaOptions&) { return {}; }
CpuGuard AskCpuGuard() { return {}; }
void ReexecWithCpuGuard(char**) {}

}  // namespace tessera
