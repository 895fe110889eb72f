/* Areas with one writer at a time and readers that never block it and never see half of one writing. Words are
 * copied with relaxed atomics: a reader may look while the writer writes, and then throws away what it saw. */
#include "protocol.h"

#include <errno.h>
#include <string.h>

static inline uint64_t rotate(uint64_t value, int bits)
{
    return value << bits | value >> (64 - bits);
}

/* Two sums side by side: their chains of dependent operations overlap. */
typedef struct {
    uint64_t even;
    uint64_t odd;
} checksum;

static inline void add_word(checksum *sum, uint64_t index, uint64_t word)
{
    if (index & 1)
        sum->odd = rotate(sum->odd, 5) + word;
    else
        sum->even = rotate(sum->even, 5) ^ word;
}

static inline uint64_t total(const checksum *sum, uint64_t nbytes)
{
    return sum->even ^ rotate(sum->odd, 32) ^ nbytes;
}

/* O(bytes). The area has room for whole words. A writer that dies here leaves an odd sequence: readers find nothing
 * until the next writing, which goes on from it. */
void rl_seqlock_write(rl_seqlock *lock, uint8_t *area, int64_t tag, const uint8_t *source, uint64_t nbytes)
{
    _Atomic uint64_t *words = (_Atomic uint64_t *)area;
    uint64_t sequence = atomic_load_explicit(&lock->sequence, memory_order_relaxed) | 1;
    checksum sum = {0, 0};
    atomic_store_explicit(&lock->sequence, sequence, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* no word below is seen without the odd sequence */
    for (uint64_t i = 0; i < nbytes / 8; i++) {
        uint64_t word;
        memcpy(&word, source + 8 * i, 8);
        add_word(&sum, i, word);
        atomic_store_explicit(&words[i], word, memory_order_relaxed);
    }
    if (nbytes % 8) {
        uint64_t word = 0;
        memcpy(&word, source + nbytes / 8 * 8, nbytes % 8);
        add_word(&sum, nbytes / 8, word);
        atomic_store_explicit(&words[nbytes / 8], word, memory_order_relaxed);
    }
    atomic_store_explicit(&lock->tag, tag, memory_order_relaxed);
    atomic_store_explicit(&lock->nbytes, nbytes, memory_order_relaxed);
    atomic_store_explicit(&lock->checksum, total(&sum, nbytes), memory_order_relaxed);
    atomic_store_explicit(&lock->sequence, sequence + 1, memory_order_release);
}

static uint64_t copy_out(const uint8_t *area, uint8_t *target, uint64_t nbytes)
{
    const _Atomic uint64_t *words = (const _Atomic uint64_t *)area;
    checksum sum = {0, 0};
    for (uint64_t i = 0; i < nbytes / 8; i++) {
        uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);
        add_word(&sum, i, word);
        memcpy(target + 8 * i, &word, 8);
    }
    if (nbytes % 8) {
        uint64_t word = atomic_load_explicit(&words[nbytes / 8], memory_order_relaxed);
        add_word(&sum, nbytes / 8, word);
        memcpy(target + nbytes / 8 * 8, &word, nbytes % 8);
    }
    return total(&sum, nbytes);
}

/* One try. Returns the bytes written last, with their tag; -ENOENT when there are none yet; -EAGAIN when a writing
 * is under way, came in between, or died. The target is garbage after -EAGAIN. O(bytes). */
int64_t rl_seqlock_read(rl_seqlock *lock, const uint8_t *area, uint64_t room, int64_t *tag, uint8_t *target)
{
    uint64_t sequence = atomic_load_explicit(&lock->sequence, memory_order_acquire);
    if (sequence == 0)
        return -ENOENT;
    if (sequence & 1)
        return -EAGAIN;
    *tag = atomic_load_explicit(&lock->tag, memory_order_relaxed);
    uint64_t nbytes = atomic_load_explicit(&lock->nbytes, memory_order_relaxed);
    uint64_t expected = atomic_load_explicit(&lock->checksum, memory_order_relaxed);
    if (nbytes > room)
        return -EAGAIN;
    uint64_t found = copy_out(area, target, nbytes);
    atomic_thread_fence(memory_order_acquire); /* pairs with the writer's release fence */
    if (atomic_load_explicit(&lock->sequence, memory_order_relaxed) != sequence || found != expected)
        return -EAGAIN;
    return (int64_t)nbytes;
}
