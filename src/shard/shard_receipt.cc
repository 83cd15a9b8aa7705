// What running or compiling over several devices gave, as JSON and for people.
#include <fmt/format.h>

#include "base/spelling.h"
#include "io/json_writer.h"
#include "tessera/shard_run.h"

namespace tessera {
namespace {

void WritePass(JsonWriter& json, const ShardPass& pass) {
  json.BeginObject().Key("pass").Text(pass.name).Key("program").Text(pass.program).Key("key").Text(pass.key);
  json.Key("compile_ns").Int(pass.compile_ns).Key("run_ns").Int(pass.run_ns);
  json.Key("one_device_ns").Int(pass.one_device_ns);
  json.Key("device_bytes").BeginObject().Key("arguments").Int(pass.argument_bytes);
  json.Key("outputs").Int(pass.output_bytes).Key("temporary").Int(pass.temp_bytes);
  json.Key("vector").Int(pass.vector_bytes).EndObject();
  if (!pass.plugin_fingerprint.empty()) json.Key("plugin_fingerprint").Text(pass.plugin_fingerprint);
  json.Key("collectives").BeginArray();
  for (const ShardCollective& one : pass.collectives) {
    json.BeginObject().Key("what").Text(one.text).Key("bytes_per_trip").Int(one.trip_bytes);
    json.Key("trips").Int(one.trips).EndObject();
  }
  json.EndArray();
  json.Key("carried_bytes").Int(pass.carried_bytes).Key("largest_received_bytes").Int(pass.largest_received);
  json.Key("allgather_bytes").Int(pass.allgather_bytes).Key("of_allgather").Real(pass.Share()).EndObject();
}

std::string Milliseconds(int64_t ns) { return fmt::format("{:.2f} ms", static_cast<double>(ns) * 1e-6); }

std::string InWords(const ShardPass& pass) {
  std::string text = fmt::format("{}, {}\n", pass.name, pass.program);
  text += fmt::format("  compiled in {}", Milliseconds(pass.compile_ns));
  if (pass.run_ns > 0) {
    text +=
        fmt::format(", ran in {}, on one device in {}", Milliseconds(pass.run_ns), Milliseconds(pass.one_device_ns));
  }
  text += fmt::format("\n  on each device: arguments {}, outputs {}, temporary {} bytes", Grouped(pass.argument_bytes),
                      Grouped(pass.output_bytes), Grouped(pass.temp_bytes));
  if (pass.vector_bytes >= 0) text += fmt::format(", vector memory {}", Grouped(pass.vector_bytes));
  text += "\n";
  int64_t silent = 0;
  for (const ShardCollective& one : pass.collectives) {
    if (one.trips == 0) {
      ++silent;
      continue;
    }
    text += fmt::format("  {}: {} bytes", one.text, Grouped(one.trip_bytes));
    text += one.trips == 1 ? "\n" : fmt::format(" x {} trips\n", one.trips);
  }
  if (silent > 0) text += fmt::format("  {} more that this batch takes no trip through\n", silent);
  if (pass.collectives.empty()) text += "  no collectives: no chip waits for another\n";
  text += fmt::format("  carried {} bytes", Grouped(pass.carried_bytes));
  if (pass.allgather_bytes > 0) {
    text += fmt::format(", {:.4f} of an all-gather's; the device that received most {}", pass.Share(),
                        Grouped(pass.largest_received));
  }
  return text + "\n";
}

}  // namespace

double ShardPass::Share() const {
  return allgather_bytes == 0 ? 0.0 : static_cast<double>(carried_bytes) / static_cast<double>(allgather_bytes);
}

bool ShardReceipt::IsGood() const {
  for (const ShardDifference& one : differences) {
    if (!one.is_good) return false;
  }
  return true;
}

std::string ToJson(const ShardReceipt& receipt) {
  JsonWriter json(2);
  json.BeginObject().Key("version").Int(1).Key("mode").Text(receipt.mode).Key("lane").Text(receipt.lane);
  json.Key("mesh").Text(ToText(receipt.mesh)).Key("fingerprint").Text(receipt.fingerprint);
  json.Key("contract_key").Text(receipt.contract_key).Key("good");
  if (receipt.WasCompared()) {
    json.Bool(receipt.IsGood());
  } else {
    json.Null();  // nothing was run
  }
  json.Key("device").BeginObject().Key("name").Text(receipt.device.name).Key("plugin").Text(receipt.device.plugin);
  json.Key("pjrt").Text(receipt.device.pjrt).Key("topology").Text(receipt.device.topology);
  json.Key("cores").Int(receipt.cores).EndObject();
  json.Key("plan_ns").Int(receipt.plan_ns).Key("cut");
  if (receipt.plan) {
    json.Raw(ToJson(*receipt.plan));
  } else {
    json.Null();
  }
  json.Key("passes").BeginArray();
  for (const ShardPass& pass : receipt.passes) WritePass(json, pass);
  json.EndArray().Key("against_one_device").BeginArray();
  for (const ShardDifference& one : receipt.differences) {
    json.BeginObject().Key("output").Text(one.name).Key("elements").Int(one.elements);
    json.Key("different").Int(one.different).Key("largest").Real(one.largest);
    json.Key("exact").Bool(!one.is_bounded).Key("bound").Real(one.bound);
    json.Key("good").Bool(one.is_good).EndObject();
  }
  json.EndArray().EndObject();
  return json.Take();
}

std::string Summary(const ShardReceipt& receipt) {
  std::string text =
      fmt::format("mesh {}, {}, {} on {}{}\n", ToText(receipt.mesh), receipt.mode, receipt.lane,
                  receipt.device.topology.empty() ? "" : receipt.device.topology + ", ", receipt.device.name);
  if (!receipt.fingerprint.empty()) text += fmt::format("fingerprint {}\n", receipt.fingerprint);
  if (receipt.plan) text += fmt::format("planned in {}\n", Milliseconds(receipt.plan_ns)) + Summary(*receipt.plan);
  for (const ShardPass& pass : receipt.passes) text += InWords(pass);
  for (const ShardDifference& one : receipt.differences) {
    std::string how = "the bits of one device";
    if (one.different > 0) {
      how = fmt::format("{} of {} elements differ", one.different, one.elements);
      how += one.is_bounded ? fmt::format(", nearest to its bound {:.3g} of {:.3g}", one.largest, one.bound)
                            : fmt::format(", at most {:.3g}, and no bit may", one.largest);
    }
    text += fmt::format("{:<13} {}{}\n", one.name, how, one.is_good ? "" : "  WRONG");
  }
  if (!receipt.WasCompared()) text += "nothing was run, so nothing was compared\n";
  return text;
}

}  // namespace tessera
