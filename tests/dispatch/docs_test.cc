// The pages of docs/ that follow a table, held against the table.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "contract/limits.h"
#include "dispatch/limits.h"
#include "export/limits.h"
#include "io/limits.h"
#include "lanes/xla/store/limits.h"
#include "ledger/limits.h"
#include "model/limits.h"
#include "plan/layout.h"
#include "receipt/fields.h"
#include "receipt/limits.h"
#include "rows/limits.h"
#include "shard/limits.h"
#include "support/proves.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

std::string Page(const std::string& name) {
  Result<std::string> text = ReadFile(std::string(TESSERA_SOURCE_DIR) + "/docs/" + name);
  EXPECT_TRUE(text.has_value()) << name;
  return text.value_or("");
}

// The text under each "## " heading.
std::map<std::string, std::string> Sections(const std::string& page) {
  std::map<std::string, std::string> sections;
  std::istringstream lines(page);
  std::string line;
  std::string heading;
  while (std::getline(lines, line)) {
    if (line.rfind("## ", 0) == 0) {
      heading = line.substr(3);
      EXPECT_EQ(sections.count(heading), 0u) << heading << " has two headings";
      sections[heading] = "";
    } else if (!heading.empty()) {
      sections[heading] += line + "\n";
    }
  }
  return sections;
}

void ExpectPageMatches(const std::string& page, const std::map<std::string, std::string>& catalogue) {
  const std::map<std::string, std::string> sections = Sections(page);
  for (const auto& [code, meaning] : catalogue) {
    auto it = sections.find(code);
    ASSERT_NE(it, sections.end()) << code << " is not on the page";
    EXPECT_EQ(it->second.rfind("\n" + meaning + "\n", 0), 0u) << code << " does not begin with: " << meaning;
    EXPECT_NE(it->second.find("**What happened.**"), std::string::npos) << code;
    EXPECT_NE(it->second.find("**What to do.**"), std::string::npos) << code;
  }
  for (const auto& [code, text] : sections) EXPECT_EQ(catalogue.count(code), 1u) << code << " is in no catalogue";
}

TEST(ErrorCodesPage, Codes_MatchCatalogue) {
  const std::map<std::string, std::string> catalogue = {
#define TESSERA_ERROR(name, text, meaning) {text, meaning},
#include "tessera/error_codes.def"
#undef TESSERA_ERROR
  };
  const std::string page = Page("error_codes.md");
  ExpectPageMatches(page, catalogue);
  const std::regex code("TSR-[A-Z][0-9]+");
  for (const char* name : {"error_codes.md", "reasons.md", "receipts.md"}) {
    const std::string text = Page(name);
    for (std::sregex_iterator it(text.begin(), text.end(), code), end; it != end; ++it) {
      EXPECT_EQ(catalogue.count(it->str()), 1u) << name << " names " << it->str();
    }
  }
}

TEST(ReasonsPage, Reasons_MatchCatalogue) {
  std::map<std::string, std::string> catalogue = {
#define TESSERA_REASON(name, text, meaning) {text, meaning},
#include "tessera/reasons.def"
#undef TESSERA_REASON
  };
  catalogue.erase("");  // "accepted" is no refusal
  ExpectPageMatches(Page("reasons.md"), catalogue);
}

// Every "inline constexpr TYPE kName" of the headers that hold limits, so that none can be left off the page.
std::set<std::string> ConstantsIn(const std::string& header, const std::string& prefix) {
  Result<std::string> text = ReadFile(std::string(TESSERA_SOURCE_DIR) + "/src/" + header);
  EXPECT_TRUE(text.has_value()) << header;
  std::set<std::string> names;
  const std::regex constant("inline constexpr [a-z0-9_]+ (" + prefix + "[A-Za-z]+) =");
  const std::string source = text.value_or("");
  for (std::sregex_iterator it(source.begin(), source.end(), constant), end; it != end; ++it) names.insert((*it)[1]);
  EXPECT_FALSE(names.empty()) << header;
  return names;
}

TEST(LimitsPage, Table_MatchesTheConstants) {
  const auto number = [](auto value) { return static_cast<uint64_t>(value); };
  const std::map<std::string, uint64_t> constants = {
      {"kMaxFileBytes", number(kMaxFileBytes)},
      {"kMaxModelVocab", number(model::kMaxModelVocab)},
      {"kMaxModelLayers", number(model::kMaxModelLayers)},
      {"kMaxModelWidth", number(model::kMaxModelWidth)},
      {"kMaxModelTokens", number(model::kMaxModelTokens)},
      {"kMaxModelParameters", number(model::kMaxModelParameters)},
      {"kMaxModelDevices", number(model::kMaxModelDevices)},
      {"kMaxDocumentBytes", number(rows::kMaxDocumentBytes)},
      {"kMaxRowTokens", number(rows::kMaxRowTokens)},
      {"kMaxShardTokens", number(rows::kMaxShardTokens)},
      {"kMaxManifestBytes", number(rows::kMaxManifestBytes)},
      {"kMaxPipeBytes", number(kMaxPipeBytes)},
      {"kMaxLinks", number(kMaxLinks)},
      {"kMaxNpyHeaderBytes", number(kMaxNpyHeaderBytes)},
      {"kMaxContractBytes", number(kMaxContractBytes)},
      {"kMaxMaskTextBytes", number(kMaxMaskTextBytes)},
      {"kMaxMaskNesting", number(kMaxMaskNesting)},
      {"kMaxMaskTerms", number(kMaxMaskTerms)},
      {"kMaxMaskTermsOverHeads", number(kMaxMaskTermsOverHeads)},
      {"kMaxRunTimeTerms", number(kMaxRunTimeTerms)},
      {"kMaxLength", number(kMaxLength)},
      {"kMaxChunks", number(kMaxChunks)},
      {"kMaxBatch", number(kMaxBatch)},
      {"kMaxHeads", number(kMaxHeads)},
      {"kMaxDim", number(kMaxDim)},
      {"kMaxTile", number(kMaxTile)},
      {"kMaxScoreFactor", number(kMaxScoreFactor)},
      {"kFreeTile", number(kFreeTile)},
      {"kMaxTensorElements", number(kMaxTensorElements)},
      {"kMaxJsonNesting", number(kMaxJsonNesting)},
      {"kMaxTomlNesting", number(kMaxTomlNesting)},
      {"kMaxTomlKeyParts", number(kMaxTomlKeyParts)},
      {"kMaxTomlTables", number(kMaxTomlTables)},
      {"kMaxBatchRank", number(kMaxBatchRank)},
      {"kMaxBatchJsonBytes", number(kMaxBatchJsonBytes)},
      {"kMaxBatchTensorBytes", number(kMaxBatchTensorBytes)},
      {"kMaxBitmapBytes", number(kMaxBitmapBytes)},
      {"kMaxTensorHeaderBytes", number(kMaxTensorHeaderBytes)},
      {"kMaxTensorsPerFile", number(kMaxTensorsPerFile)},
      {"kMaxTensorRank", number(kMaxTensorRank)},
      {"kMaxReceiptBytes", number(kMaxReceiptBytes)},
      {"kMaxReceiptNesting", number(kMaxReceiptNesting)},
      {"kMaxReceiptValues", number(kMaxReceiptValues)},
      {"kMaxLedgerBytes", number(kMaxLedgerBytes)},
      {"kMaxLedgerNesting", number(kMaxLedgerNesting)},
      {"kMaxLedgerEntries", number(kMaxLedgerEntries)},
      {"kMaxLedgerNs", number(kMaxLedgerNs)},
      {"kMaxLedgerValues", number(kMaxLedgerValues)},
      {"kMaxWorkspaceBytes", number(kMaxWorkspaceBytes)},
      {"kMaxIdleWorkspaceBytes", number(kMaxIdleWorkspaceBytes)},
      {"kMaxCachedRuns", number(kMaxCachedRuns)},
      {"kMaxCachedRunBytes", number(kMaxCachedRunBytes)},
      {"kMaxSpellings", number(kMaxSpellings)},
      {"kMaxTermNameBytes", number(kMaxTermNameBytes)},
      {"kMaxTermParameters", number(kMaxTermParameters)},
      {"kMaxTermRuns", number(kMaxTermRuns)},
      {"kMaxTermIntervals", number(kMaxTermIntervals)},
      {"kMaxTermRects", number(kMaxTermRects)},
      {"kMaxTileScores", number(lanes::xla::kMaxTileScores)},
      {"kMaxProgramStoreBytes", number(lanes::xla::kMaxProgramStoreBytes)},
      {"kMaxStoredProgramBytes", number(lanes::xla::kMaxStoredProgramBytes)},
      {"kMaxProgramKeyBytes", number(lanes::xla::kMaxProgramKeyBytes)},
      {"kMaxCpuinfoBytes", number(lanes::xla::kMaxCpuinfoBytes)},
      {"kMaxArrayBytes", number(exports::kMaxArrayBytes)},
      {"kMaxThreads", number(kMaxThreads)},
      {"kMaxShardFileBytes", number(kMaxShardFileBytes)},
      {"kMaxShardTensors", number(kMaxShardTensors)},
      {"kMaxShardRules", number(kMaxShardRules)},
      {"kMaxLockSeconds", number(kMaxLockSeconds)},
      {"kMaxSlots", number(plan::kMaxSlots)},
      {"kMaxRows", number(plan::kMaxRows)},
      {"kMaxPlanHeads", number(plan::kMaxPlanHeads)},
      {"kMaxConditions", number(plan::kMaxConditions)},
  };
  std::set<std::string> in_code = ConstantsIn("plan/layout.h", "kMax");
  for (const char* header :
       {"io/limits.h", "contract/limits.h", "receipt/limits.h", "ledger/limits.h", "dispatch/limits.h",
        "export/limits.h", "lanes/xla/store/limits.h", "rows/limits.h", "model/limits.h", "shard/limits.h"})
    in_code.merge(ConstantsIn(header, "k"));
  std::set<std::string> known;
  for (const auto& [name, value] : constants) known.insert(name);
  EXPECT_EQ(known, in_code) << "a constant is missing here, and perhaps on the page";

  const std::string page = Page("limits.md");
  std::map<std::string, uint64_t> documented;
  const std::regex row("\n\\| `(k[A-Za-z]+)` \\| ([0-9]+) \\|");
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it) {
    EXPECT_TRUE(documented.emplace((*it)[1], std::stoull((*it)[2])).second) << (*it)[1] << " has two rows";
  }
  EXPECT_EQ(documented, constants);
}

TEST(ReceiptsPage, FieldTable_MatchesReceipt) {
  const std::string page = Page("receipts.md");
  std::set<std::string> documented;
  const std::regex row("\n\\| `([a-z_]+)` \\|");
  for (std::sregex_iterator it(page.begin(), page.end(), row), end; it != end; ++it) documented.insert((*it)[1]);
  std::set<std::string> fields;
  const Receipt receipt;
  VisitFields(receipt, [&](const char* name, const auto&) { fields.insert(name); });
  EXPECT_EQ(documented, fields);
}

TEST(ReceiptsPage, Example_IsAValidReceipt) {
  const std::string page = Page("receipts.md");
  const size_t begin = page.find("```json\n");
  ASSERT_NE(begin, std::string::npos);
  const size_t end = page.find("```", begin + 8);
  const std::string example = page.substr(begin + 8, end - begin - 8);
  Result<Receipt> receipt = ParseReceipt(example);
  ASSERT_TRUE(receipt.has_value()) << ToText(receipt.error());
  EXPECT_EQ(ToJson(*receipt) + "\n", example);
  EXPECT_NE(page.find(ToLine(*receipt)), std::string::npos) << "the page's text line should be: " << ToLine(*receipt);
}

}  // namespace
}  // namespace tessera
