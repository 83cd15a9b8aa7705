#include "train/programs.h"

#include "base/try.h"
#include "io/json_writer.h"
#include "tessera/io.h"

namespace tessera::train {
namespace {

void Write(JsonWriter& json, const char* key, const std::vector<ProgramOperand>& operands) {
  json.Key(key).BeginArray();
  for (const ProgramOperand& operand : operands) {
    json.BeginObject();
    json.Key("name").Text(operand.name).Key("type").Text(ToText(operand.tensor.type)).Key("shape");
    json.Ints(operand.tensor.shape).Key("source").Text(operand.source);
    if (!operand.about.empty()) json.Key("about").Text(operand.about);
    json.EndObject();
  }
  json.EndArray();
}

}  // namespace

Status WritePrograms(const std::string& folder, const ModelPrograms& model) {
  JsonWriter json(2);
  json.BeginObject().Key("programs").BeginArray();
  for (const ProgramText& program : model.programs) {
    TESSERA_TRY(WriteFile(folder + "/" + program.pass + ".mlir", program.text));
    json.BeginObject().Key("pass").Text(program.pass).Key("file").Text(program.pass + ".mlir");
    json.Key("module").Text(program.name).Key("attention").Text(program.lane).Key("kernels").BeginArray();
    for (const KernelText& kernel : program.kernels) {
      TESSERA_TRY(WriteFile(folder + "/" + kernel.name + ".mosaic", kernel.text));
      json.Text(kernel.name + ".mosaic");
    }
    json.EndArray();
    Write(json, "operands", program.operands);
    Write(json, "results", program.results);
    json.EndObject();
  }
  json.EndArray().EndObject();
  return WriteFile(folder + "/programs.json", json.Take() + "\n");
}

}  // namespace tessera::train
