/* Faults below a program that does not know them: slow files, a slow clock, a library that leaks.

   Loaded with LD_PRELOAD. Every variable is optional:
   FAULT_FILES         files whose path begins with this are slow
   FAULT_OPEN_S        time that opening one of them takes
   FAULT_BYTES_PER_S   rate of reading and writing them
   FAULT_FLUSH_S       time that fsync of one of them takes
   FAULT_FOR_S         they are slow only so long after the first was opened
   FAULT_FAILS_AFTER   reads of them fail with EIO after so many
   FAULT_CLOCK         the monotonic clock of the main thread runs so many times slower
   FAULT_LEAK_BYTES_PER_S  a rank (RANK is set) loses so much memory */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_FILES 65536
static char is_slow[MOST_FILES];
static long num_reads;
static double first_open_s = -1.0;

static double number(const char *name) {
    const char *text = getenv(name);
    return text ? atof(text) : 0.0;
}

static double now_s(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void wait_s(double seconds) {
    if (seconds <= 0) return;
    struct timespec t = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) == -1 && errno == EINTR) {}
}

static int is_over(void) {
    double for_s = number("FAULT_FOR_S");
    return for_s > 0 && first_open_s >= 0 && now_s() - first_open_s > for_s;
}

static void opened(const char *path, int fd) {
    const char *prefix = getenv("FAULT_FILES");
    if (!prefix || fd < 0 || fd >= MOST_FILES) return;
    is_slow[fd] = strncmp(path, prefix, strlen(prefix)) == 0;
    if (!is_slow[fd]) return;
    if (first_open_s < 0) first_open_s = now_s();
    if (!is_over()) wait_s(number("FAULT_OPEN_S"));
}

static int is_slow_file(int fd) { return fd >= 0 && fd < MOST_FILES && is_slow[fd]; }

static void moved(int fd, ssize_t num_bytes) {
    double rate = number("FAULT_BYTES_PER_S");
    if (is_slow_file(fd) && num_bytes > 0 && rate > 0 && !is_over()) wait_s(num_bytes / rate);
}

static int fails(int fd) {
    const char *text = getenv("FAULT_FAILS_AFTER");
    if (!text || !is_slow_file(fd)) return 0;
    return __sync_add_and_fetch(&num_reads, 1) > atol(text);
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, name)
#define MODE(flags, mode) int mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; va_start(rest, flags); mode = va_arg(rest, int); va_end(rest); }

int open(const char *path, int flags, ...) {
    MODE(flags, mode); REAL(int, "open", const char *, int, ...);
    int fd = real(path, flags, mode); opened(path, fd); return fd;
}
int open64(const char *path, int flags, ...) {
    MODE(flags, mode); REAL(int, "open64", const char *, int, ...);
    int fd = real(path, flags, mode); opened(path, fd); return fd;
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode); REAL(int, "openat", int, const char *, int, ...);
    int fd = real(folder, path, flags, mode); opened(path, fd); return fd;
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, mode); REAL(int, "openat64", int, const char *, int, ...);
    int fd = real(folder, path, flags, mode); opened(path, fd); return fd;
}
int close(int fd) {
    REAL(int, "close", int);
    if (fd >= 0 && fd < MOST_FILES) is_slow[fd] = 0;
    return real(fd);
}
ssize_t read(int fd, void *data, size_t size) {
    REAL(ssize_t, "read", int, void *, size_t);
    if (fails(fd)) { errno = EIO; return -1; }
    ssize_t done = real(fd, data, size); moved(fd, done); return done;
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pread64", int, void *, size_t, off64_t);
    if (fails(fd)) { errno = EIO; return -1; }
    ssize_t done = real(fd, data, size, at); moved(fd, done); return done;
}
ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t done = real(fd, data, size); moved(fd, done); return done;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    ssize_t done = real(fd, parts, count); moved(fd, done); return done;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    ssize_t done = real(fd, data, size, at); moved(fd, done); return done;
}
int fsync(int fd) {
    REAL(int, "fsync", int);
    if (is_slow_file(fd) && !is_over()) wait_s(number("FAULT_FLUSH_S"));
    return real(fd);
}
int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    if (is_slow_file(fd) && !is_over()) wait_s(number("FAULT_FLUSH_S"));
    return real(fd);
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    static double factor = -1.0, first_s;
    int done = real(clock, t);
    if (factor < 0) { first_s = now_s(); factor = number("FAULT_CLOCK"); }
    if (factor > 0 && clock == CLOCK_MONOTONIC && getpid() == syscall(SYS_gettid)) {
        double scaled_s = first_s + (t->tv_sec + t->tv_nsec * 1e-9 - first_s) / factor;
        t->tv_sec = (time_t)scaled_s;
        t->tv_nsec = (long)((scaled_s - t->tv_sec) * 1e9);
    }
    return done;
}

static void *leak(void *unused) {
    (void)unused;
    double rate = number("FAULT_LEAK_BYTES_PER_S");
    for (;;) {
        size_t size = (size_t)(rate * 0.05);
        char *lost = malloc(size);
        if (lost) memset(lost, 1, size);
        wait_s(0.05);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    if (number("FAULT_LEAK_BYTES_PER_S") > 0 && getenv("RANK")) pthread_create(&thread, NULL, leak, NULL);
}
