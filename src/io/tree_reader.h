// Reads the fields of a struct out of a JSON tree and collects everything that is wrong, each with its place as
// "decisions[2].lane". Reading is strict: every field, no other field, the right type.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/document.h"
#include "tessera/error.h"

namespace tessera {

class TreeReader {
 public:
  std::vector<Violation> violations;

  void Violate(std::string field, std::string expected) {
    violations.push_back({std::move(field), std::move(expected)});
  }
  void Read(const DocumentValue& value, const std::string& at, int64_t& out);
  void Read(const DocumentValue& value, const std::string& at, double& out);  // integers too; finite
  void Read(const DocumentValue& value, const std::string& at, bool& out);
  void Read(const DocumentValue& value, const std::string& at, std::string& out);
  void Read(const DocumentValue& value, const std::string& at, std::map<std::string, std::string>& out);
  bool IsTable(const DocumentValue& value, const std::string& at);
  bool IsArray(const DocumentValue& value, const std::string& at);
  // The member of a table, or null and a violation where there is none.
  const DocumentValue* Find(const DocumentValue& table, const std::string& at, const char* name);
  // Every key of the table that is not among the known ones is a violation.
  void RefuseOthers(const DocumentValue& table, const std::string& at, const std::vector<std::string>& known);

  static std::string Place(const std::string& at, const std::string& name) {
    return at.empty() ? name : at + "." + name;
  }
};

}  // namespace tessera
