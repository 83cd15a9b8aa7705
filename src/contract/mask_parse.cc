// Recursive descent over the mask language. Grammar, loosest binding first:
//   any  := all ("or" all)*
//   all  := one ("and" one)*
//   one  := term | "(" any ")"
// A registered term is written NAME or NAME@VERSION, with integers in parentheses where it takes any.
// Same-operator nests are flattened, so that canonical text reads back as the same tree.
#include "contract/mask_parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/spelling.h"
#include "base/try.h"
#include "contract/mask_registry.h"
#include "contract/mask_terms.h"

namespace tessera {
namespace {

enum class TokenKind { kEnd, kWord, kNumber, kString, kSymbol, kBad };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  size_t begin = 0;
  std::string_view source;  // as written
  std::string content;      // strings: without quotes and escapes; bad tokens: what was expected instead
};

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsWordStart(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsWordPart(char c) { return IsWordStart(c) || IsDigit(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Token Next() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
    Token token;
    token.begin = at_;
    if (at_ == text_.size()) return token;
    const char c = text_[at_];
    if (IsWordStart(c)) {
      token.kind = TokenKind::kWord;
      while (at_ < text_.size() && IsWordPart(text_[at_])) ++at_;
    } else if (IsDigit(c) || ((c == '-' || c == '+') && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1]))) {
      token.kind = TokenKind::kNumber;
      ++at_;
      // Taken whole, so that "1.5" and "4k" are reported as written.
      while (at_ < text_.size() && (IsWordPart(text_[at_]) || text_[at_] == '.')) ++at_;
    } else if (c == '"' || c == '\'') {
      ReadString(&token);
    } else if (c == '(' || c == ')' || c == ',' || c == '@') {
      token.kind = TokenKind::kSymbol;
      ++at_;
    } else {
      token.kind = TokenKind::kBad;
      ++at_;
      while (at_ < text_.size() && (text_[at_] == c || (static_cast<unsigned char>(text_[at_]) & 0xC0) == 0x80)) ++at_;
      token.content = c == '&'   ? "`and`"
                      : c == '|' ? "`or`"
                      : c == '!' || c == '~' || c == '-'
                          ? "a mask term: there is no `not`, a mask says what may attend, never what may not"
                          : "a mask term, `and`, `or` or a parenthesis";
    }
    token.source = text_.substr(token.begin, at_ - token.begin);
    return token;
  }

 private:
  void ReadString(Token* token) {
    const char quote = text_[at_++];
    token->kind = TokenKind::kString;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      token->content += text_[at_++];
    }
    if (at_ == text_.size()) {
      token->kind = TokenKind::kBad;
      token->content = "a closing quote";
      return;
    }
    ++at_;
    const bool has_control = std::any_of(token->content.begin(), token->content.end(),
                                         [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
    if (has_control || !IsUtf8(token->content)) {
      token->kind = TokenKind::kBad;
      token->content = "UTF-8 text without control characters";
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

using Terms = std::vector<std::shared_ptr<const RegisteredTerm>>;

std::string KnownTerms(const Terms& own) {
  std::string out;
  for (const TermSpec& spec : kTermSpecs) {
    if (!out.empty()) out += ", ";
    out += spec.usage;
  }
  for (const auto& term : own) out += fmt::format(", {} with {}", term->name, ParameterCountText(*term));
  return out;
}

std::string RegisteredTerms(const Terms& own) {
  std::string out;
  for (const auto& term : own) {
    out += fmt::format("{}{}@{}", out.empty() ? "registered here: " : ", ", term->name, term->version);
  }
  return out.empty() ? "none is registered here" : out;
}

constexpr std::string_view kOwnTermHelp =
    "a term of your own is registered from C++, and a contract that names it is read with it (docs/contract.md)";

class Parser {
 public:
  Parser(std::string_view text, BitmapLoader& loader, const MaskTerms* terms)
      : text_(text), lexer_(text), loader_(loader), own_terms_(terms) {
    token_ = lexer_.Next();
  }

  Result<MaskExpr> ParseAll() {
    Result<MaskExpr> expr = ParseOr();
    if (!expr) return expr;
    if (token_.kind != TokenKind::kEnd) return Expected("`and`, `or` or the end of the expression");
    return expr;
  }

 private:
  Result<MaskExpr> ParseOr() { return ParseJoined(MaskExpr::Op::kOr); }

  Result<MaskExpr> ParseJoined(MaskExpr::Op op) {
    const bool is_or = op == MaskExpr::Op::kOr;
    MaskExpr joined;
    joined.op = op;
    while (true) {
      Result<MaskExpr> part = is_or ? ParseJoined(MaskExpr::Op::kAnd) : ParseOne();
      if (!part) return part;
      if (part->op == op) {
        std::move(part->children.begin(), part->children.end(), std::back_inserter(joined.children));
      } else {
        joined.children.push_back(std::move(*part));
      }
      if (!IsWord(is_or ? "or" : "and")) break;
      Advance();
    }
    if (joined.children.size() == 1) {
      MaskExpr only = std::move(joined.children.front());
      return only;
    }
    return joined;
  }

  Result<MaskExpr> ParseOne() {
    if (!IsSymbol('(')) return ParseTerm();
    if (++nesting_ > kMaxMaskNesting) {
      return Fault(token_, fmt::format("more than {} nested parentheses", kMaxMaskNesting));
    }
    Advance();
    Result<MaskExpr> inner = ParseOr();
    if (!inner) return inner;
    if (!IsSymbol(')')) return Expected("`and`, `or` or `)`");
    Advance();
    --nesting_;
    return inner;
  }

  Result<MaskExpr> ParseTerm() {
    if (token_.kind != TokenKind::kWord || IsWord("and") || IsWord("or")) {
      return Expected(fmt::format("a mask term ({})", KnownTerms(OwnTerms())));
    }
    if (IsWord("not")) {
      return Expected("a mask term: there is no `not`, a mask says what may attend, never what may not");
    }
    const auto* found = std::find_if(kTermSpecs.begin(), kTermSpecs.end(),
                                     [&](const TermSpec& spec) { return spec.word == token_.source; });
    std::shared_ptr<const RegisteredTerm> own;
    if (found == kTermSpecs.end()) {
      if (own_terms_ != nullptr) own = own_terms_->Find(token_.source);
      if (own == nullptr) return UnknownTerm();
    }
    if (++terms_ > kMaxMaskTerms) return Fault(token_, fmt::format("more than {} terms", kMaxMaskTerms));
    if (own != nullptr) return ParseRegistered(std::move(own));
    Advance();
    MaskExpr expr;
    expr.term.kind = found->kind;
    TESSERA_TRY(found->kind == TermKind::kBitmap ? ParseBitmap(&expr.term) : ParseArguments(*found, &expr.term));
    return expr;
  }

  tl::unexpected<Error> UnknownTerm() {
    const Token word = token_;
    const Terms own = OwnTerms();
    std::vector<std::string_view> words;
    for (const TermSpec& spec : kTermSpecs) words.push_back(spec.word);
    for (const auto& term : own) words.push_back(term->name);
    const std::string guess = DidYouMean(word.source, words);
    const tl::unexpected<Error> unknown = Expected(
        fmt::format("a mask term ({}){}", KnownTerms(own), guess.empty() ? fmt::format("; {}", kOwnTermHelp) : guess));
    Advance();
    if (!IsSymbol('@')) return unknown;
    // Only a registered term has a version: the text was written where it was.
    return Fail(ErrorCode::kMaskTermInvalid,
                fmt::format("the term {} is not registered{}; {}; {}", Excerpt(word.source), guess,
                            RegisteredTerms(own), kOwnTermHelp),
                Place(word));
  }

  Result<MaskExpr> ParseRegistered(std::shared_ptr<const RegisteredTerm> spec) {
    const Token word = token_;
    const std::string usage = fmt::format("{} with {}", spec->name, ParameterCountText(*spec));
    Advance();
    if (IsSymbol('@')) {
      Advance();
      const Token version = token_;
      const int64_t value = TESSERA_TRY(TakeNumber(fmt::format("the version of {}", spec->name)));
      if (value != spec->version) {
        return Fail(ErrorCode::kMaskTermInvalid,
                    fmt::format("the text was written for {}@{}, but version {} of {} is registered", spec->name, value,
                                spec->version, spec->name),
                    Place(version));
      }
    }
    MaskExpr expr;
    expr.term.kind = TermKind::kRegistered;
    if (IsSymbol('(')) {
      do {
        Advance();
        if (expr.term.parameters.size() == kMaxTermParameters) {
          return Fault(token_, fmt::format("expected {}", usage));
        }
        expr.term.parameters.push_back(TESSERA_TRY(TakeNumber(fmt::format("a parameter of {}", usage))));
      } while (IsSymbol(','));
      TESSERA_TRY(TakeSymbol(')', usage));
    }
    if (std::string problem = ParametersProblem(*spec, expr.term.parameters); !problem.empty()) {
      return Fault(word, std::move(problem));
    }
    expr.term.registered = std::move(spec);
    return expr;
  }

  Status ParseArguments(const TermSpec& spec, MaskTerm* term) {
    if (spec.num_arguments == 0) {
      if (!IsSymbol('(')) return {};
      if (spec.kind != TermKind::kDocuments) {
        return Expected(fmt::format("`and`, `or` or the end: {} takes no arguments", spec.word));
      }
      Advance();
      term->kind = TermKind::kDocumentsEqual;
      TESSERA_TRY(TakeOption("equal"));
      return TakeSymbol(')', "documents(equal)");
    }
    TESSERA_TRY(TakeSymbol('(', spec.usage));
    for (int i = 0; i < spec.num_arguments; ++i) {
      if (i > 0) TESSERA_TRY(TakeSymbol(',', spec.usage));
      (i == 0 ? term->first : term->second) = TESSERA_TRY(TakeInteger(spec, i));
    }
    if (spec.kind == TermKind::kSink && IsSymbol(',')) {
      Advance();
      term->kind = TermKind::kSinkDocument;
      TESSERA_TRY(TakeOption("document"));
    }
    return TakeSymbol(')', spec.usage);
  }

  Status ParseBitmap(MaskTerm* term) {
    constexpr std::string_view kUsage = "bitmap(\"file.npy\")";
    TESSERA_TRY(TakeSymbol('(', kUsage));
    if (token_.kind != TokenKind::kString) return Expected(fmt::format("a quoted file name, as in {}", kUsage));
    if (token_.content.empty()) return Expected("the name of an npy file");
    const Token file = token_;
    term->path = token_.content;
    Advance();
    Token digest;
    if (IsSymbol(',')) {
      Advance();
      const bool is_digest = token_.kind == TokenKind::kString && IsHex(token_.content);
      if (!is_digest) return Expected(fmt::format("the content's digest: {} lower-case hex digits", kHexDigits));
      digest = token_;
      Advance();
    }
    TESSERA_TRY(TakeSymbol(')', kUsage));

    Result<std::shared_ptr<const Bitmap>> bitmap = loader_.Load(term->path);
    if (!bitmap) return Fail(bitmap.error().code, bitmap.error().message, Place(file));
    if (digest.kind == TokenKind::kString && digest.content != (*bitmap)->digest) {
      return Fail(ErrorCode::kBitmapInvalid,
                  fmt::format("the content of {} has digest {}, expected {}: the file is not the one this contract was "
                              "written for",
                              Excerpt(term->path), (*bitmap)->digest, digest.content),
                  Place(digest));
    }
    term->bitmap = std::move(*bitmap);
    return {};
  }

  Result<int64_t> TakeInteger(const TermSpec& spec, int index) {
    const Token number = token_;
    Result<int64_t> value =
        TakeNumber(fmt::format("{} of {}", spec.arguments[static_cast<size_t>(index)].name, spec.usage));
    if (!value) return value;
    std::string problem = ArgumentProblem(spec, index, *value);
    if (!problem.empty()) return Fault(number, std::move(problem));
    return value;
  }

  Result<int64_t> TakeNumber(std::string_view what) {
    if (token_.kind != TokenKind::kNumber) return Expected(fmt::format("an integer ({})", what));
    std::string_view digits = token_.source;
    if (digits[0] == '+') digits.remove_prefix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (end != digits.data() + digits.size()) return Expected(fmt::format("an integer ({})", what));
    if (error == std::errc::result_out_of_range) return Expected(fmt::format("{} of at most {}", what, kMaxLength));
    Advance();
    return value;
  }

  Status TakeOption(std::string_view option) {
    if (!IsWord(option)) return Expected(fmt::format("`{}`{}", option, DidYouMean(token_.source, {option})));
    Advance();
    return {};
  }

  Status TakeSymbol(char symbol, std::string_view usage) {
    if (!IsSymbol(symbol)) return Expected(fmt::format("`{}`, as in {}", symbol, usage));
    Advance();
    return {};
  }

  tl::unexpected<Error> Expected(std::string_view expected) const {
    const std::string found = token_.kind == TokenKind::kEnd ? "the end of the expression" : Excerpt(token_.source);
    const std::string_view wanted = token_.kind == TokenKind::kBad ? std::string_view(token_.content) : expected;
    return Fault(token_, fmt::format("found {}, expected {}", found, wanted));
  }
  tl::unexpected<Error> Fault(const Token& token, std::string message) const {
    return Fail(ErrorCode::kMaskSyntax, std::move(message), Place(token));
  }
  // Columns count characters, from 1.
  std::string Place(const Token& token) const {
    const auto starts = std::count_if(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(token.begin),
                                      [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    return fmt::format("column {}", starts + 1);
  }

  Terms OwnTerms() const { return own_terms_ == nullptr ? Terms() : own_terms_->All(); }

  bool IsWord(std::string_view word) const { return token_.kind == TokenKind::kWord && token_.source == word; }
  bool IsSymbol(char symbol) const { return token_.kind == TokenKind::kSymbol && token_.source[0] == symbol; }
  void Advance() { token_ = lexer_.Next(); }

  std::string_view text_;
  Lexer lexer_;
  BitmapLoader& loader_;
  const MaskTerms* own_terms_;  // may be null
  Token token_;
  int nesting_ = 0;
  int terms_ = 0;
};

}  // namespace

Result<MaskExpr> ParseMaskExpr(std::string_view text, BitmapLoader& loader, const MaskTerms* terms) {
  if (text.size() > kMaxMaskTextBytes) {
    return Fail(ErrorCode::kMaskSyntax,
                fmt::format("the expression has {} bytes, expected at most {}", text.size(), kMaxMaskTextBytes));
  }
  return Parser(text, loader, terms).ParseAll();
}

Result<MaskExpr> ParseMaskExpr(std::string_view text, const std::string& base_dir, const MaskTerms* terms) {
  BitmapLoader loader(base_dir);
  return ParseMaskExpr(text, loader, terms);
}

int64_t CountTerms(const MaskExpr& expr) {
  if (expr.op == MaskExpr::Op::kTerm) return 1;
  int64_t count = 0;
  for (const MaskExpr& child : expr.children) count += CountTerms(child);
  return count;
}

}  // namespace tessera
