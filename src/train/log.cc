#include "train/log.h"

#include "io/json_writer.h"
#include "io/tree_reader.h"

namespace tessera::train {
namespace {

constexpr JsonLimits kLimits{.max_depth = 4, .max_values = 1 << 16};

template <class Layer, class Visit>
void VisitTelemetry(Layer& layer, const Visit& visit) {
  visit("sink_ratio", layer.sink_ratio);
  visit("document_sink_ratio", layer.document_sink_ratio);
  visit("max_magnitude", layer.max_magnitude);
  visit("outliers", layer.outliers);
  visit("excess_kurtosis", layer.excess_kurtosis);
}

// Exact: what is read is what was written.
void Write(const LogPoint& point, JsonWriter& json) {
  json.BeginObject();
  json.Key("step").Int(point.step).Key("loss").Real(point.loss).Key("grad_norm").Real(point.grad_norm);
  json.Key("learning_rate").Real(point.learning_rate).Key("tokens").Int(point.tokens);
  json.Key("tokens_per_s").Real(point.tokens_per_s).Key("goodput").Real(point.goodput);
  if (point.held_out_loss) json.Key("held_out_loss").Real(*point.held_out_loss);
  if (!point.layers.empty()) {
    json.Key("layers");
    WriteTelemetry(point.layers, json);
  }
  json.EndObject();
}

}  // namespace

void WriteTelemetry(const std::vector<LayerTelemetry>& layers, JsonWriter& json) {
  json.BeginArray();
  for (const LayerTelemetry& layer : layers) {
    json.BeginObject();
    VisitTelemetry(layer, [&](const char* name, double value) { json.Key(name).Real(value); });
    json.Key("class").Text(layer.telemetry_class).EndObject();
  }
  json.EndArray();
}

std::string ToJsonl(const std::vector<LogPoint>& points) {
  std::string text;
  for (const LogPoint& point : points) {
    JsonWriter json;
    Write(point, json);
    text += json.Take() + "\n";
  }
  return text;
}

std::vector<LogPoint> ParseLog(std::string_view text, int64_t last_step) {
  std::vector<LogPoint> points;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const auto tree = ReadJsonTree(text.substr(0, end), kLimits);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!tree) continue;
    TreeReader reader;
    LogPoint point;
    const auto take = [&](const char* name, auto& out) {
      if (const DocumentValue* value = reader.Find(*tree, "", name); value != nullptr) reader.Read(*value, name, out);
    };
    take("step", point.step);
    take("loss", point.loss);
    take("grad_norm", point.grad_norm);
    take("learning_rate", point.learning_rate);
    take("tokens", point.tokens);
    take("tokens_per_s", point.tokens_per_s);
    take("goodput", point.goodput);
    if (tree->Find("held_out_loss") != nullptr) {
      point.held_out_loss = 0.0;
      take("held_out_loss", *point.held_out_loss);
    }
    if (const DocumentValue* layers = tree->Find("layers"); layers != nullptr && reader.IsArray(*layers, "layers")) {
      for (const DocumentValue& item : layers->items) {
        LayerTelemetry& layer = point.layers.emplace_back();
        if (!reader.IsTable(item, "layers")) break;
        VisitTelemetry(layer, [&](const char* name, double& out) {
          if (const DocumentValue* value = reader.Find(item, "layers", name); value != nullptr)
            reader.Read(*value, name, out);
        });
        if (const DocumentValue* value = item.Find("class"); value != nullptr)
          reader.Read(*value, "class", layer.telemetry_class);
      }
    }
    if (reader.violations.empty() && point.step <= last_step) points.push_back(point);
  }
  return points;
}

}  // namespace tessera::train
