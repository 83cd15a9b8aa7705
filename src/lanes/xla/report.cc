// What `tessera lanes` says of plugins: each one found is loaded and asked.
#include <fmt/format.h>

#include "lanes/xla/pjrt/find_plugins.h"
#include "lanes/xla/state.h"

namespace tessera {
namespace {

namespace xla = lanes::xla;

PluginReport ReportOn(xla::State& state, const std::string& name, const std::string& path) {
  PluginReport report{.name = name, .use = {.plugin = path}, .devices = {}, .usable = {}};
  report.use.guard = xla::GuardText();
  const Result<const pjrt::Plugin*> plugin = pjrt::Plugin::Load(path, state.probe);
  if (!plugin) {
    report.usable = "no: " + plugin.error().message;
    return report;
  }
  report.use = xla::UseOf(**plugin);
  report.use.plugin = path;  // as it was found, links and all
  if (pjrt::IsTpuPlugin(path) && !pjrt::HasTpu()) {
    report.use.platform = "tpu";
    report.usable = "compile-only: this machine has no TPU";
    return report;
  }
  const Result<pjrt::Client*> client = state.clients.Of(**plugin);
  if (!client) {
    report.usable = "no: " + client.error().message;
    return report;
  }
  report.use.platform = (*client)->platform();
  report.use.platform_version = (*client)->platform_version();
  for (const pjrt::DeviceInfo& device : (*client)->devices()) {
    report.devices.push_back(fmt::format("{} {}", device.id, device.kind));
  }
  const bool is_refused = report.use.platform == "cpu" && xla::Guard().state == CpuGuardState::kRefused;
  report.usable = is_refused ? "no: " + xla::Guard().reason : "yes";
  return report;
}

}  // namespace

std::vector<PluginReport> ReportPlugins(xla::State& state, const std::string& given) {
  std::vector<PluginReport> reports;
  if (!given.empty()) reports.push_back(ReportOn(state, "given", given));
  for (const pjrt::FoundPlugin& found : pjrt::FindPlugins(state.settings.folder)) {
    reports.push_back(ReportOn(state, found.name, found.path));
  }
  return reports;
}

}  // namespace tessera
