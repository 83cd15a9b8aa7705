// Lines of "field<tabs>: value", a paragraph per core, the implementer before the part. Numbers are "0x" and at least
// three digits, so one part fits in the place of another.
#include "lanes/xla/guard/rewrite.h"

#include <string.h>

struct Part {
  unsigned implementer;
  unsigned part;
};

static const struct Part kSveParts[] = {
#define TESSERA_SVE_PART(implementer, part, name) {implementer, part},
#include "lanes/xla/guard/sve_parts.def"
#undef TESSERA_SVE_PART
};

#ifdef TESSERA_GUARD_TEST_VARIANT  // which has the plain core among its SVE parts
static const char kPlainPart[] = "0xd0b";
#else
static const char kPlainPart[] = "0xd0c";
#endif
enum { kPlainPartSize = sizeof(kPlainPart) - 1 };

static int IsSvePart(unsigned implementer, unsigned part) {
  for (size_t i = 0; i < sizeof(kSveParts) / sizeof(kSveParts[0]); ++i) {
    if (kSveParts[i].implementer == implementer && kSveParts[i].part == part) return 1;
  }
  return 0;
}

static int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Reads "0x..." up to `end`; returns where it ends, or `text` where there is no such number.
static char* ReadHex(char* text, const char* end, unsigned* value) {
  if (end - text < 3 || text[0] != '0' || text[1] != 'x' || HexDigit(text[2]) < 0) return text;
  char* at = text + 2;
  *value = 0;
  for (; at < end && HexDigit(*at) >= 0; ++at) *value = *value * 16 + (unsigned)HexDigit(*at);
  return at;
}

// Where the value of a line begins whose field is this one, or null.
static char* ValueOf(char* line, const char* end, const char* field) {
  const size_t size = strlen(field);
  if ((size_t)(end - line) < size || memcmp(line, field, size) != 0) return NULL;
  char* at = line + size;
  while (at < end && (*at == ' ' || *at == '\t')) ++at;
  if (at == end || *at != ':') return NULL;
  for (++at; at < end && (*at == ' ' || *at == '\t'); ++at) {
  }
  return at;
}

int tessera_rewrite_cpuinfo(char* text, size_t size) {
  if (size == 0) return 0; /* also for no text at all */
  char* const text_end = text + size;
  unsigned implementer = 0;
  int num_changed = 0;
  for (char* line = text; line < text_end;) {
    char* newline = memchr(line, '\n', (size_t)(text_end - line));
    char* const end = newline == NULL ? text_end : newline;
    char* value = ValueOf(line, end, "CPU implementer");
    unsigned part = 0;
    if (value != NULL) {
      ReadHex(value, end, &implementer);
    } else if ((value = ValueOf(line, end, "CPU part")) != NULL) {
      char* const value_end = ReadHex(value, end, &part);
      if (value_end - value >= kPlainPartSize && IsSvePart(implementer, part)) {
        memcpy(value, kPlainPart, kPlainPartSize);
        memset(value + kPlainPartSize, ' ', (size_t)(value_end - value) - kPlainPartSize);
        ++num_changed;
      }
    }
    line = newline == NULL ? text_end : newline + 1;
  }
  return num_changed;
}
