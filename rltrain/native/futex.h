/* Waiting for a shared word to change, and waking those who wait. */
#ifndef RLTRAIN_FUTEX_H
#define RLTRAIN_FUTEX_H

#include "protocol.h"

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t rl_now_ns(void);

/* Number of notifications so far, modulo 2^31. O(1). */
static inline uint32_t rl_event_count(rl_event *event)
{
    return atomic_load_explicit(&event->word, memory_order_acquire) >> 1;
}

/* Count a notification and wake all sleepers; a system call only when somebody may sleep. O(1). */
void rl_event_notify(rl_event *event);

/* Set the count to a value and wake all sleepers, provided that the word still is `*expected`.
 * Returns whether it was; otherwise `*expected` is the word found. O(1). */
int rl_event_advance(rl_event *event, uint32_t *expected, uint32_t count);

/* Sleep until the count differs from `seen`. Returns 0, -ETIMEDOUT or -EINTR. The count is compared and the sleeper
 * announced in one word, so no notification after the reading of `seen` is missed. */
int rl_event_wait(rl_event *event, uint32_t seen, int64_t deadline_ns);

#endif
