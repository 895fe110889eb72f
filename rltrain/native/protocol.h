/* Shared words: who writes, who reads, in which order.
 *
 * Every process maps the same memory; all of it is zero at first, and zero is a valid beginning of everything here.
 *
 * word                    writers                      readers              order
 * rl_event.word           notifier, sleeper (bit 0)    sleeper              acq_rel CAS; acquire load
 * rl_slot.word            holder, taker, supervisor    all                  CAS acq_rel; acquire load
 * rl_slot.ticket, meta    holder, before publish       taker                relaxed, released by the CAS of `word`
 * rl_ring.head            publishers                   supervisor           relaxed fetch_add: only unique and growing
 * rl_ring.dropped, late   whoever notices              supervisor           relaxed fetch_add
 * rl_mailbox.request      the lane's actor             server               release store; acquire load
 * rl_mailbox.<payload>    the lane's actor             server               relaxed, released by `request`
 * rl_mailbox.reply        server, actor, supervisor    actor, server        acq_rel CAS; acquire load
 * rl_mailbox.live         actor, supervisor            server               relaxed: a hint for batching
 * rl_mailbox.progress     the lane's actor             its next life        relaxed: the process boundary orders it
 * rl_seqlock.sequence     the area's writer            any                  odd while writing; release fence/store,
 *                                                                           acquire load/fence
 * rl_seqlock.<rest>, area the area's writer            any                  relaxed, bracketed by `sequence`
 * rl_board.latest         learner                      server, actors       release store; acquire load
 * rl_control.<words>      learner, supervisor          all                  release store; acquire load
 * slab rows               the slot's holder; for its   taker; server        plain, ordered by `slot.word`,
 *                         open request the server                           `request` and `reply`
 */
#ifndef RLTRAIN_PROTOCOL_H
#define RLTRAIN_PROTOCOL_H

#ifndef __linux__
#error "rltrain needs Linux: its processes wait on futexes and share a memfd"
#endif

#include <stdatomic.h>
#include <stdint.h>

#include "api.h"

/* A count of notifications in bits 1-31 and "somebody may sleep" in bit 0: one word, so that one CAS both counts and
 * learns whether a wake-up is due. A sleeper that was killed leaves bit 0 set, which costs one needless system call. */
typedef struct {
    _Atomic uint32_t word;
} rl_event;

struct rl_control {
    rl_event changed;
    _Atomic uint32_t stop;
    _Atomic uint32_t finish;
    uint32_t unused;
    _Atomic int64_t snapshot_fragment_plus_one; /* 0: none */
    uint8_t pad[40];
};

struct rl_ring {
    rl_event freed; /* a slot became FREE */
    uint8_t pad0[60];
    rl_event readied; /* a slot became READY */
    uint8_t pad1[60];
    _Atomic uint64_t head; /* next ticket = fragments published so far */
    uint8_t pad2[56];
    _Atomic uint64_t dropped;
    _Atomic uint64_t late;
    uint8_t pad3[48];
};

/* word: state in bits 0-7, owner in bits 8-31 (0: nobody), generation in bits 32-63. */
struct rl_slot {
    _Atomic uint64_t word;
    _Atomic uint64_t ticket;
    _Atomic int64_t lane;
    _Atomic int64_t fragment_index;
    _Atomic int64_t policy_version;
    _Atomic int64_t sequence;
    uint8_t pad[16];
};

struct rl_doorbell {
    rl_event rung;
    uint8_t pad[60];
};

struct rl_mailbox {
    _Atomic uint32_t request; /* count of requests, 31 bits */
    _Atomic uint32_t live;
    _Atomic int64_t slot;
    _Atomic int64_t step;
    _Atomic int64_t fragment_index;
    _Atomic int64_t required_version; /* -1: any */
    _Atomic int64_t arrival_ns;
    _Atomic int64_t progress;
    uint8_t pad0[8];
    rl_event reply; /* the request last answered; the request is open while it differs from `request` */
    uint32_t unused;
    _Atomic int64_t reply_version;
    uint8_t pad1[48];
};

struct rl_seqlock {
    _Atomic uint64_t sequence; /* 0: never written */
    _Atomic int64_t tag;
    _Atomic uint64_t nbytes;
    _Atomic uint64_t checksum;
    uint8_t pad[32];
};

struct rl_board {
    rl_event published;
    uint32_t unused;
    _Atomic int64_t latest_plus_one; /* 0: nothing published yet */
    uint8_t pad[48];
    struct rl_seqlock buffers[2]; /* version v lies in buffer v % 2 */
};

_Static_assert(sizeof(struct rl_control) == RL_CONTROL_BYTES, "rl_control");
_Static_assert(sizeof(struct rl_ring) == RL_RING_BYTES, "rl_ring");
_Static_assert(sizeof(struct rl_slot) == RL_SLOT_BYTES, "rl_slot");
_Static_assert(sizeof(struct rl_doorbell) == RL_DOORBELL_BYTES, "rl_doorbell");
_Static_assert(sizeof(struct rl_mailbox) == RL_MAILBOX_BYTES, "rl_mailbox");
_Static_assert(sizeof(struct rl_seqlock) == RL_SEQLOCK_BYTES, "rl_seqlock");
_Static_assert(sizeof(struct rl_board) == RL_BOARD_BYTES, "rl_board");
_Static_assert(sizeof(rl_event) == 4, "a futex word has 32 bits");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must work between processes");

#endif
