#define _GNU_SOURCE
#include "futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLEEPER 1u

int64_t rl_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Without FUTEX_PRIVATE_FLAG: the word is shared between processes. */
static int futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};
    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0) == 0)
        return 0;
    return -errno;
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int rl_event_advance(rl_event *event, uint32_t *expected, uint32_t count)
{
    if (!atomic_compare_exchange_weak_explicit(&event->word, expected, count << 1, memory_order_acq_rel,
                                               memory_order_acquire))
        return 0;
    if (*expected & SLEEPER)
        futex_wake_all(&event->word);
    return 1;
}

void rl_event_notify(rl_event *event)
{
    uint32_t old = atomic_load_explicit(&event->word, memory_order_relaxed);
    while (!rl_event_advance(event, &old, (old >> 1) + 1))
        ;
}

int rl_event_wait(rl_event *event, uint32_t seen, int64_t deadline_ns)
{
    for (;;) {
        uint32_t word = atomic_load_explicit(&event->word, memory_order_acquire);
        if (word >> 1 != seen)
            return 0;
        int64_t left_ns = deadline_ns - rl_now_ns();
        if (left_ns <= 0)
            return -ETIMEDOUT;
        if (!(word & SLEEPER)) {
            if (!atomic_compare_exchange_weak_explicit(&event->word, &word, word | SLEEPER, memory_order_acq_rel,
                                                       memory_order_acquire))
                continue;
            word |= SLEEPER;
        }
        if (futex_wait(&event->word, word, left_ns) == -EINTR)
            return -EINTR;
    }
}
