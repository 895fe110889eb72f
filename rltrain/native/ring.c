/* The trajectory ring's slots. A slot changes hands by one CAS of its word, so a holder that dies at any instruction
 * leaves a word that says what it held. Everything else in the ring is a count or a hint. */
#include "futex.h"

#include <errno.h>

enum { FREE = 0, WRITING = 1, READY = 2, READING = 3, NUM_STATES = 4 };

static inline uint64_t pack(uint32_t state, uint32_t owner, uint32_t generation)
{
    return (uint64_t)generation << 32 | (uint64_t)owner << 8 | state;
}

static inline uint32_t state_of(uint64_t word)
{
    return word & 0xff;
}

static inline uint32_t owner_of(uint64_t word)
{
    return (uint32_t)word >> 8;
}

static inline uint32_t generation_of(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

/* Acquire: what the last holder left is seen. Release: what this one wrote is seen by the next. */
static inline int change(rl_slot *slot, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(&slot->word, &from, to, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

static inline uint64_t load(rl_slot *slot)
{
    return atomic_load_explicit(&slot->word, memory_order_acquire);
}

/* First FREE slot -> WRITING. Low numbers first: few slots stay warm in the caches. O(slots). */
static int64_t claim_free(rl_slot *slots, int64_t num_slots, uint32_t owner, uint32_t *held)
{
    for (int64_t i = 0; i < num_slots; i++) {
        uint64_t word = load(&slots[i]);
        if (state_of(word) != FREE)
            continue;
        uint32_t generation = generation_of(word) + 1;
        if (change(&slots[i], word, pack(WRITING, owner, generation))) {
            held[i] = generation;
            return i;
        }
    }
    return -EAGAIN;
}

/* READY slot with the smallest ticket -> `state`, its generation raised by `step`. O(slots). */
static int64_t take_oldest(rl_slot *slots, int64_t num_slots, uint32_t owner, uint32_t state, uint32_t step,
                           uint32_t *held)
{
    for (;;) {
        int64_t oldest = -1;
        uint64_t oldest_word = 0, oldest_ticket = 0;
        for (int64_t i = 0; i < num_slots; i++) {
            uint64_t word = load(&slots[i]);
            if (state_of(word) != READY)
                continue;
            uint64_t ticket = atomic_load_explicit(&slots[i].ticket, memory_order_relaxed);
            if (oldest < 0 || ticket < oldest_ticket) {
                oldest = i;
                oldest_word = word;
                oldest_ticket = ticket;
            }
        }
        if (oldest < 0)
            return -EAGAIN;
        uint32_t generation = generation_of(oldest_word) + step;
        if (change(&slots[oldest], oldest_word, pack(state, owner, generation))) {
            held[oldest] = generation;
            return oldest;
        }
    }
}

int64_t rl_ring_claim(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, int64_t timeout_ns,
                      uint32_t *held)
{
    int64_t deadline_ns = timeout_ns > 0 ? rl_now_ns() + timeout_ns : 0;
    for (;;) {
        uint32_t seen = rl_event_count(&ring->freed); /* before the look, or a release after it would be missed */
        int64_t slot = claim_free(slots, num_slots, owner, held);
        if (slot >= 0)
            return slot;
        int rc = timeout_ns > 0 ? rl_event_wait(&ring->freed, seen, deadline_ns) : -ETIMEDOUT;
        if (rc < 0)
            return rc;
    }
}

/* O(slots). Returns -EAGAIN when every slot is being written or read. */
int64_t rl_ring_claim_overwriting(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, uint32_t *held)
{
    int64_t slot = claim_free(slots, num_slots, owner, held);
    if (slot >= 0)
        return slot;
    slot = take_oldest(slots, num_slots, owner, WRITING, 1, held);
    if (slot >= 0)
        atomic_fetch_add_explicit(&ring->dropped, 1, memory_order_relaxed);
    return slot;
}

/* O(1). Returns -ESTALE, and counts, when the slot is no longer the caller's. */
int rl_ring_publish(rl_ring *ring, rl_slot *slots, int64_t slot, uint32_t owner, const uint32_t *held, int64_t lane,
                    int64_t fragment_index, int64_t policy_version, int64_t sequence)
{
    rl_slot *at = &slots[slot];
    uint64_t mine = pack(WRITING, owner, held[slot]);
    if (load(at) == mine) {
        atomic_store_explicit(&at->lane, lane, memory_order_relaxed);
        atomic_store_explicit(&at->fragment_index, fragment_index, memory_order_relaxed);
        atomic_store_explicit(&at->policy_version, policy_version, memory_order_relaxed);
        atomic_store_explicit(&at->sequence, sequence, memory_order_relaxed);
        uint64_t ticket = atomic_fetch_add_explicit(&ring->head, 1, memory_order_relaxed);
        atomic_store_explicit(&at->ticket, ticket, memory_order_relaxed);
        if (change(at, mine, pack(READY, 0, held[slot]))) {
            rl_event_notify(&ring->readied);
            return 0;
        }
    }
    atomic_fetch_add_explicit(&ring->late, 1, memory_order_relaxed);
    return -ESTALE;
}

int64_t rl_ring_take(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner, int64_t timeout_ns,
                     uint32_t *held)
{
    int64_t deadline_ns = timeout_ns > 0 ? rl_now_ns() + timeout_ns : 0;
    for (;;) {
        uint32_t seen = rl_event_count(&ring->readied);
        int64_t slot = take_oldest(slots, num_slots, owner, READING, 0, held);
        if (slot >= 0)
            return slot;
        int rc = timeout_ns > 0 ? rl_event_wait(&ring->readied, seen, deadline_ns) : -ETIMEDOUT;
        if (rc < 0)
            return rc;
    }
}

/* O(1). Returns -ESTALE, and counts, when the slot is no longer the caller's. */
int rl_ring_release(rl_ring *ring, rl_slot *slots, int64_t slot, uint32_t owner, const uint32_t *held)
{
    if (change(&slots[slot], pack(READING, owner, held[slot]), pack(FREE, 0, held[slot]))) {
        rl_event_notify(&ring->freed);
        return 0;
    }
    atomic_fetch_add_explicit(&ring->late, 1, memory_order_relaxed);
    return -ESTALE;
}

/* O(slots). The generation is raised, so that a holder that was not dead after all is found out. A slot that was
 * being read keeps its ticket: it is the oldest again. */
int64_t rl_ring_reclaim(rl_ring *ring, rl_slot *slots, int64_t num_slots, uint32_t owner)
{
    int64_t num_freed = 0, num_readied = 0;
    for (int64_t i = 0; i < num_slots; i++) {
        uint64_t word = load(&slots[i]);
        uint32_t next = generation_of(word) + 1;
        if (owner_of(word) != owner)
            continue;
        if (state_of(word) == WRITING)
            num_freed += change(&slots[i], word, pack(FREE, 0, next));
        else if (state_of(word) == READING)
            num_readied += change(&slots[i], word, pack(READY, 0, next));
    }
    /* Always: the owner may have died between the CAS that freed or readied a slot and its notification. */
    rl_event_notify(&ring->freed);
    rl_event_notify(&ring->readied);
    return num_freed + num_readied;
}

/* meta: lane, fragment_index, policy_version, sequence. O(1). */
void rl_ring_meta(rl_slot *slots, int64_t slot, int64_t *meta)
{
    meta[0] = atomic_load_explicit(&slots[slot].lane, memory_order_relaxed);
    meta[1] = atomic_load_explicit(&slots[slot].fragment_index, memory_order_relaxed);
    meta[2] = atomic_load_explicit(&slots[slot].policy_version, memory_order_relaxed);
    meta[3] = atomic_load_explicit(&slots[slot].sequence, memory_order_relaxed);
}

uint32_t rl_ring_generation(rl_slot *slots, int64_t slot)
{
    return generation_of(load(&slots[slot]));
}

/* counts: slots FREE, WRITING, READY, READING; fragments dropped, late, published. O(slots), not one moment. */
void rl_ring_counts(rl_ring *ring, rl_slot *slots, int64_t num_slots, int64_t *counts)
{
    for (int state = 0; state < NUM_STATES; state++)
        counts[state] = 0;
    for (int64_t i = 0; i < num_slots; i++)
        counts[state_of(load(&slots[i])) % NUM_STATES]++;
    counts[4] = (int64_t)atomic_load_explicit(&ring->dropped, memory_order_relaxed);
    counts[5] = (int64_t)atomic_load_explicit(&ring->late, memory_order_relaxed);
    counts[6] = (int64_t)atomic_load_explicit(&ring->head, memory_order_relaxed);
}
