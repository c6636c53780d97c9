/* A library to preload: from main() on, the n-th call of one kind fails; with LOWBIT_FAULT_ON=1 every later one too, of
 * allocations those of 64 KiB and more (nlohmann::json allocates where it must not throw, when a tree ends).
 *
 *   LOWBIT_FAULT_KIND   malloc (malloc, calloc, realloc, aligned ones, anonymous mmap), thread (pthread_create) or cuda
 *                       (cudaMalloc and cudaMallocHost)
 *   LOWBIT_FAULT_AT     n, from 1; 0: none fails
 *   LOWBIT_FAULT_COUNT  a file that gets the number of calls at the end
 *
 * Children of fork() count on their own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { kNone, kMalloc, kThread, kCuda };

static atomic_long calls;
static atomic_int armed;
static enum kind wanted = kNone;
static long at = 0;
static int stays = 0;

static int fails(enum kind kind, size_t size) {
  if (!atomic_load(&armed) || kind != wanted) return 0;
  const long n = atomic_fetch_add(&calls, 1) + 1;
  return at > 0 && (n == at || (stays && n > at && size >= (64 << 10)));
}

/* The real functions. dlsym may allocate: it is asked before main(), and until then glibc's own names serve. */
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  if (fails(kMalloc, size)) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (fails(kMalloc, count * size)) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) {
  if (fails(kMalloc, size)) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_realloc(p, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (fails(kMalloc, size)) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** p, size_t alignment, size_t size) {
  if (fails(kMalloc, size)) return ENOMEM;
  *p = __libc_memalign(alignment, size);
  return *p == NULL ? ENOMEM : 0;
}

void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  static void* (*real)(void*, size_t, int, int, int, off_t);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "mmap");
  if ((flags & MAP_ANONYMOUS) != 0 && (flags & MAP_FIXED) == 0 && fails(kMalloc, size)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return real(address, size, protection, flags, fd, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pthread_create");
  if (fails(kThread, SIZE_MAX)) return EAGAIN;
  return real(thread, attributes, start, argument);
}

/* CUDA's runtime is linked statically, so that its names cannot be replaced. But it asks for the driver's by dlsym, for
 * one that finds the others. */
enum { kOutOfDeviceMemory = 2 };
static int (*device_malloc)(unsigned long long*, size_t);
static int (*pinned_malloc)(void**, size_t, unsigned);
static int (*find_function)(const char*, void**, int, unsigned long long, void*);

static int device_malloc_or_fail(unsigned long long* p, size_t size) {
  return fails(kCuda, size) ? kOutOfDeviceMemory : device_malloc(p, size);
}
static int pinned_malloc_or_fail(void** p, size_t size, unsigned flags) {
  return fails(kCuda, size) ? kOutOfDeviceMemory : pinned_malloc(p, size, flags);
}

static int is(const char* name, const char* function) {
  const size_t size = strlen(function);
  return strncmp(name, function, size) == 0 && (name[size] == 0 || strcmp(name + size, "_v2") == 0);
}

static int find_or_replace(const char* name, void** function, int version, unsigned long long flags, void* status);
static void replace(const char* name, void** function) {
  const struct {
    const char* name;
    void *real, *ours;
  } all[] = {{"cuMemAlloc", &device_malloc, (void*)device_malloc_or_fail},
             {"cuMemHostAlloc", &pinned_malloc, (void*)pinned_malloc_or_fail},
             {"cuGetProcAddress", &find_function, (void*)find_or_replace}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (!is(name, all[i].name) || *function == NULL || *function == all[i].ours) continue;
    *(void**)all[i].real = *function;
    *function = all[i].ours;
  }
}
static int find_or_replace(const char* name, void** function, int version, unsigned long long flags, void* status) {
  const int code = find_function(name, function, version, flags, status);
  if (code == 0 && name != NULL && function != NULL) replace(name, function);
  return code;
}

/* The real one goes by who calls it where it is asked for the next library's function: those of this file, as nobody
   else asks so. */
void* dlsym(void* handle, const char* name) {
  static void* (*real)(void*, const char*);
  const char* versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  for (size_t i = 0; i < 3 && real == NULL; ++i) *(void**)&real = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  void* function = real(handle, name);
  replace(name, &function);
  return function;
}

static void write_count(void) {
  atomic_store(&armed, 0);
  const char* path = getenv("LOWBIT_FAULT_COUNT");
  if (path == NULL) return;
  char text[32];
  const int size = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd >= 0) (void)!write(fd, text, (size_t)size);
  if (fd >= 0) close(fd);
}

static int (*program)(int, char**, char**);
static int counted_main(int argc, char** argv, char** environment) {
  const char *kind = getenv("LOWBIT_FAULT_KIND"), *n = getenv("LOWBIT_FAULT_AT"), *on = getenv("LOWBIT_FAULT_ON");
  if (kind != NULL) wanted = strcmp(kind, "malloc") == 0 ? kMalloc : strcmp(kind, "thread") == 0 ? kThread : kCuda;
  at = n == NULL ? 0 : atol(n);
  stays = on != NULL && on[0] == '1';
  atomic_store(&armed, 1);
  const int code = program(argc, argv, environment);
  write_count();
  return code;
}

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void* stack_end) {
  int (*real)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void), void (*)(void), void*);
  *(void**)&real = dlsym(RTLD_NEXT, "__libc_start_main");
  program = main;
  return real(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
