// Which bitmap files a contract's text names. Not the reader of contracts: that one stops at what is wrong, and a file
// named in a text that is wrong elsewhere is still a file somebody means to keep.
#include "io/document.h"
#include "tessera/named_files.h"

namespace tessera {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Each `bitmap("name"` or `bitmap('name'` of a mask, with the escapes that masks have.
void AddNames(std::string_view mask, std::vector<std::string>& names) {
  constexpr std::string_view kWord = "bitmap";
  for (size_t at = mask.find(kWord); at != std::string_view::npos; at = mask.find(kWord, at + 1)) {
    size_t i = at + kWord.size();
    const auto skip_blanks = [&] {
      while (i < mask.size() && IsBlank(mask[i])) ++i;
    };
    skip_blanks();
    if (i == mask.size() || mask[i++] != '(') continue;
    skip_blanks();
    if (i == mask.size() || (mask[i] != '"' && mask[i] != '\'')) continue;
    const char quote = mask[i++];
    std::string name;
    while (i < mask.size() && mask[i] != quote) {
      if (mask[i] == '\\' && i + 1 < mask.size()) ++i;
      name += mask[i++];
    }
    if (i < mask.size() && !name.empty()) names.push_back(std::move(name));
  }
}

void AddNames(const DocumentValue& value, std::vector<std::string>& names) {
  if (value.kind == DocumentValue::Kind::kString) AddNames(value.text, names);
  for (const DocumentValue& item : value.items) AddNames(item, names);
}

}  // namespace

std::vector<std::string> BitmapFiles(std::string_view text) {
  std::vector<std::string> names;
  // No need to read what cannot name one, not even in a string's escapes.
  if (text.find("bitmap") == std::string_view::npos && text.find('\\') == std::string_view::npos) return names;
  if (const Result<DocumentValue> document = ParseDocument(text)) {
    AddNames(*document, names);
    return names;
  }
  // Neither TOML nor JSON: as the text stands, and once more without the backslashes of a string around a mask.
  AddNames(text, names);
  std::string bare;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    bare += text[i];
  }
  AddNames(bare, names);
  return names;
}

}  // namespace tessera
