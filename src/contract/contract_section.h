// One table of a contract document, read field by field. Fields that are never asked for are unknown, so the list of
// known fields is the reading code itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/document.h"
#include "tessera/contract.h"

namespace tessera {

class ContractSection {
 public:
  // `path` is the field path of the table, empty for the document itself. A null table has no fields.
  ContractSection(std::string path, const DocumentValue* table, std::vector<Violation>* problems);

  // Each returns whether the field was there and of the right type; `out` is written only then.
  bool Integer(std::string_view key, int64_t* out);
  bool Real(std::string_view key, double* out);
  bool Bool(std::string_view key, bool* out);
  bool Text(std::string_view key, std::string* out);
  void Capacity(std::string_view key, Limit* out);

  // As above; a missing field is a problem.
  bool RequiredInteger(std::string_view key, int64_t* out);

  // A field of any type, null when absent.
  const DocumentValue* Any(std::string_view key);
  // A sub-table, null when absent or not a table (which is a problem).
  const DocumentValue* Table(std::string_view key);

  void Missing(std::string_view key, std::string_view expected);
  void WrongType(std::string_view key, std::string_view expected, const DocumentValue& found);
  void Problem(std::string_view key, std::string expected);
  std::string PathOf(std::string_view key) const;

  // Reports every field that was not asked for.
  void Finish();

 private:
  std::string path_;
  const DocumentValue* table_;
  std::vector<Violation>* problems_;
  std::vector<std::string_view> known_;
};

}  // namespace tessera
