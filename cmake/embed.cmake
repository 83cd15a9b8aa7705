# Text files as constants of one C++ file, so that what needs them needs no file at run time.
#   cmake -DFILES=a.html;b.css -DHEADER=view/page_text.h -DNAMESPACE=tessera::view -DOUT=x.cc -P embed.cmake
# error_codes.md becomes kErrorCodesMd, which HEADER declares. A string literal may be too long for some compilers in one
# piece; ours take any length.
set(text "// Made by cmake/embed.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(path IN LISTS FILES)
  get_filename_component(name ${path} NAME)
  string(REGEX MATCHALL "[A-Za-z0-9]+" words ${name})
  set(constant k)
  foreach(word IN LISTS words)
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND constant ${first}${rest})
  endforeach()
  file(READ ${path} content)
  string(APPEND text "const char* const ${constant} = R\"PAGE(${content})PAGE\";\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
