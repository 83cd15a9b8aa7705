// Preloaded where the processor has SVE and the system hides it: XLA knows the core by the part number in
// /proc/cpuinfo, compiles SVE for it and dies of an illegal instruction. Who opens exactly /proc/cpuinfo to read it
// gets a copy in which such parts are those of a core without SVE; everything else goes through unchanged. Nothing is
// kept between calls but the addresses of the real functions, so any number of threads may call.
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE  // its checked versions of these functions would stand in the way of defining them

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include "lanes/xla/guard/rewrite.h"

#define TESSERA_EXPORT __attribute__((visibility("default")))

static const char kPath[] = "/proc/cpuinfo";

typedef int (*OpenFunction)(const char*, int, ...);
typedef int (*OpenAtFunction)(int, const char*, int, ...);
typedef FILE* (*FopenFunction)(const char*, const char*);

static atomic_int num_served;  // copies given so far

// The next definition of a name, after ours. Two threads that ask at once store the same address.
static void* Next(_Atomic(void*)* kept, const char* name) {
  void* found = atomic_load_explicit(kept, memory_order_relaxed);
  if (found == NULL) {
    found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();  // a C library without open
    atomic_store_explicit(kept, found, memory_order_relaxed);
  }
  return found;
}

static int RealOpen(const char* path, int flags, mode_t mode) {
  static _Atomic(void*) kept;
  return ((OpenFunction)Next(&kept, "open"))(path, flags, mode);
}

static int RealOpenAt(int folder, const char* path, int flags, mode_t mode) {
  static _Atomic(void*) kept;
  return ((OpenAtFunction)Next(&kept, "openat"))(folder, path, flags, mode);
}

static FILE* RealFopen(const char* path, const char* mode) {
  static _Atomic(void*) kept;
  return ((FopenFunction)Next(&kept, "fopen"))(path, mode);
}

// All that is left to read, or null with errno set.
static char* ReadAll(int fd, size_t* size) {
  size_t room = 1 << 16;
  char* text = malloc(room);
  *size = 0;
  while (text != NULL) {
    if (*size == room) {
      char* const larger = realloc(text, room *= 2);
      if (larger == NULL) break;
      text = larger;
    }
    const ssize_t got = read(fd, text + *size, room - *size);
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    *size += (size_t)got;
  }
  free(text);
  return NULL;
}

static int WriteAll(int fd, const char* text, size_t size) {
  while (size > 0) {
    const ssize_t put = write(fd, text, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return -1;
    text += put;
    size -= (size_t)put;
  }
  return 0;
}

// A file in memory with what /proc/cpuinfo says, parts changed; -1 where there is nothing to change, or no way to.
static int OpenCopy(int flags, int* num_changed) {
  *num_changed = 0;
  const int source = RealOpen(kPath, O_RDONLY | O_CLOEXEC, 0);
  if (source < 0) return -1;
  size_t size = 0;
  char* const text = ReadAll(source, &size);
  close(source);
  int copy = -1;
  if (text != NULL && (*num_changed = tessera_rewrite_cpuinfo(text, size)) > 0) {
    copy = memfd_create("cpuinfo", (flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0);
    if (copy >= 0 && (WriteAll(copy, text, size) != 0 || lseek(copy, 0, SEEK_SET) != 0)) {
      close(copy);
      copy = -1;
    }
  }
  free(text);
  return copy;
}

// A copy in place of the file that is asked for, or -1 where that is to be opened as it is.
static int OpenInstead(const char* path, int flags) {
  if (path == NULL || (flags & O_ACCMODE) != O_RDONLY || strcmp(path, kPath) != 0) return -1;
  const int saved = errno;
  int num_changed = 0;
  const int copy = OpenCopy(flags, &num_changed);
  if (copy >= 0) atomic_fetch_add(&num_served, 1);
  errno = saved;
  return copy;
}

static int GuardedOpen(const char* path, int flags, mode_t mode) {
  const int copy = OpenInstead(path, flags);
  return copy >= 0 ? copy : RealOpen(path, flags, mode);
}

static int GuardedOpenAt(int folder, const char* path, int flags, mode_t mode) {
  const int copy = OpenInstead(path, flags);
  return copy >= 0 ? copy : RealOpenAt(folder, path, flags, mode);
}

static FILE* GuardedFopen(const char* path, const char* mode) {
  const int is_read = mode != NULL && mode[0] == 'r' && strchr(mode, '+') == NULL;
  const int copy = is_read ? OpenInstead(path, strchr(mode, 'e') != NULL ? O_CLOEXEC : 0) : -1;
  if (copy < 0) return RealFopen(path, mode);
  FILE* const file = fdopen(copy, mode);
  if (file == NULL) close(copy);
  return file;
}

static int HasMode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// What a program that was preloaded with this library finds it by: how many parts change on this machine, -1 where the
// copy could not be made.
TESSERA_EXPORT int tessera_cpuinfo_changed(void) {
  int num_changed = 0;
  const int copy = OpenCopy(O_CLOEXEC, &num_changed);
  if (copy >= 0) close(copy);
  return num_changed > 0 && copy < 0 ? -1 : num_changed;
}

TESSERA_EXPORT int tessera_cpuinfo_served(void) { return atomic_load(&num_served); }

TESSERA_EXPORT int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (HasMode(flags)) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  return GuardedOpen(path, flags, mode);
}

TESSERA_EXPORT int openat(int folder, const char* path, int flags, ...) {
  mode_t mode = 0;
  if (HasMode(flags)) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  return GuardedOpenAt(folder, path, flags, mode);
}

TESSERA_EXPORT FILE* fopen(const char* path, const char* mode) { return GuardedFopen(path, mode); }

// On 64-bit systems these are the same functions under other names; the last four are what a checked build calls.
TESSERA_EXPORT int open64(const char* path, int flags, ...) __attribute__((alias("open")));
TESSERA_EXPORT int openat64(int folder, const char* path, int flags, ...) __attribute__((alias("openat")));
TESSERA_EXPORT FILE* fopen64(const char* path, const char* mode) __attribute__((alias("fopen")));
TESSERA_EXPORT int __open_2(const char* path, int flags) { return GuardedOpen(path, flags, 0); }
TESSERA_EXPORT int __open64_2(const char* path, int flags) { return GuardedOpen(path, flags, 0); }
TESSERA_EXPORT int __openat_2(int folder, const char* path, int flags) { return GuardedOpenAt(folder, path, flags, 0); }
TESSERA_EXPORT int __openat64_2(int folder, const char* path, int flags) {
  return GuardedOpenAt(folder, path, flags, 0);
}
