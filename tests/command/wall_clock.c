/* Shifts the wall clock of a process, for tests that set it while a run continues.

   Preloaded; the file in PHALANX_TEST_CLOCK holds the shift in seconds as a 64-bit integer, and is
   read at each call. Monotonic clocks stay as they are. A wait until a moment of the wall clock
   looks every 50 ms whether that moment has come, as the kernel does when the clock is set.

   libfaketime cannot be used: it rejects the absolute monotonic sleep of Python 3.11 (EINVAL). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t nothing = 0;
static volatile const int64_t *shift = &nothing;

static long (*real_syscall)(long, ...);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  real_cond = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!real_cond) real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_sem = dlsym(RTLD_NEXT, "sem_timedwait");
  const char *path = getenv("PHALANX_TEST_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) shift = page;
  close(file);
}

static int raw(clockid_t id, struct timespec *now) {
  if (!real_syscall) begin(); /* Another library's constructor may come first. */
  return (int)real_syscall(SYS_clock_gettime, id, now);
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int result = raw(id, now);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (out) *out = found.tv_sec;
  return found.tv_sec;
}

/* Whether a deadline is one of the wall clock: no machine is up for 30 years. */
static int is_wall(const struct timespec *deadline) {
  return deadline && deadline->tv_sec > 1000000000;
}

/* The next moment at which to look, by the true clock; 0 if the deadline has come. */
static int next_look(const struct timespec *deadline, struct timespec *look) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t left = (deadline->tv_sec - now.tv_sec) * 1000000000LL + deadline->tv_nsec - now.tv_nsec;
  if (left <= 0) return 0;
  if (left > 50000000) left = 50000000;
  raw(CLOCK_REALTIME, look);
  left += look->tv_nsec;
  look->tv_sec += left / 1000000000;
  look->tv_nsec = left % 1000000000;
  return 1;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
  struct timespec look;
  if (!is_wall(deadline)) return real_cond(condition, mutex, deadline);
  while (next_look(deadline, &look)) {
    int result = real_cond(condition, mutex, &look);
    if (result != ETIMEDOUT) return result;
  }
  return ETIMEDOUT;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
  struct timespec look;
  if (!is_wall(deadline)) return real_sem(semaphore, deadline);
  while (next_look(deadline, &look)) {
    int result = real_sem(semaphore, &look);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
  errno = ETIMEDOUT;
  return -1;
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
  long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  const struct timespec *deadline = (const struct timespec *)d;
  if (number != SYS_futex || !(b & FUTEX_CLOCK_REALTIME) || !is_wall(deadline))
    return real_syscall(number, a, b, c, d, e, f);
  struct timespec look;
  while (next_look(deadline, &look)) {
    long result = real_syscall(number, a, b, c, &look, e, f);
    if (result != -1 || errno != ETIMEDOUT) return result;
  }
  errno = ETIMEDOUT;
  return -1;
}
