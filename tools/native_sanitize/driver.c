/* Threads over one mapping do what rltrain's processes do, with plain payloads, so that a sanitizer sees whether the
 * shared words order them. Every payload is checked: exit status 1 and a line on stderr say what was wrong. */
#define _GNU_SOURCE
#include "futex.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NUM_SLOTS = 6, NUM_WRITERS = 3, NUM_READERS = 2, NUM_LANES = 4, ROW_WORDS = 64, WEIGHT_BYTES = 4003, STRIDE = 4096 };

typedef struct {
    struct rl_control control;
    struct rl_ring ring;
    struct rl_slot slots[NUM_SLOTS];
    struct rl_doorbell doorbell;
    struct rl_mailbox boxes[NUM_LANES];
    struct rl_board board;
    uint8_t buffers[2 * STRIDE];
    uint64_t rows[NUM_SLOTS][ROW_WORDS];        /* plain: ordered by the slot words */
    uint64_t request_rows[NUM_LANES][ROW_WORDS]; /* plain: ordered by the mailbox words */
    uint64_t reply_rows[NUM_LANES][ROW_WORDS];
} shared_memory;

void run_layers(void); /* layers.c */

static shared_memory *shared;
static int64_t rounds;
static _Atomic int64_t num_published, num_taken;

#define CHECK(condition, what) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s (line %d)\n", what, __LINE__); \
            exit(1); \
        } \
    } while (0)

static const int64_t SECOND_NS = 1000000000;

static void fill(uint64_t *row, uint64_t value)
{
    for (int i = 0; i < ROW_WORDS; i++)
        row[i] = value + (uint64_t)i;
}

static int is_filled(const uint64_t *row, uint64_t value)
{
    for (int i = 0; i < ROW_WORDS; i++)
        if (row[i] != value + (uint64_t)i)
            return 0;
    return 1;
}

/* -- ring: one in 16 fragments is abandoned, as by a writer that died, and reclaimed ------------------------------- */

static void *write_fragments(void *argument)
{
    uint32_t owner = (uint32_t)(uintptr_t)argument, held[NUM_SLOTS];
    for (int64_t i = 1; i <= rounds; i++) {
        int64_t slot = i % 5 ? rl_ring_claim(&shared->ring, shared->slots, NUM_SLOTS, owner, 20 * SECOND_NS, held)
                             : rl_ring_claim_overwriting(&shared->ring, shared->slots, NUM_SLOTS, owner, held);
        if (slot == -EAGAIN)
            continue;
        CHECK(slot >= 0, "a claim found no slot: a wake-up was lost");
        fill(shared->rows[slot], owner * 1000003u + (uint64_t)i);
        if (i % 16 == 0) {
            CHECK(rl_ring_reclaim(&shared->ring, shared->slots, NUM_SLOTS, owner) == 1, "reclaim missed a slot");
            CHECK(rl_ring_publish(&shared->ring, shared->slots, slot, owner, held, 0, 0, 0, 0) == -ESTALE,
                  "a late publication was accepted");
            continue;
        }
        CHECK(rl_ring_publish(&shared->ring, shared->slots, slot, owner, held, owner, i, 0, i) == 0,
              "a publication was refused");
        atomic_fetch_add(&num_published, 1);
    }
    return NULL;
}

static void *read_fragments(void *argument)
{
    uint32_t owner = (uint32_t)(uintptr_t)argument, held[NUM_SLOTS];
    int64_t meta[4];
    for (int64_t i = 1;; i++) {
        int64_t slot = rl_ring_take(&shared->ring, shared->slots, NUM_SLOTS, owner, 20 * SECOND_NS, held);
        CHECK(slot >= 0, "a take found no fragment: a wake-up was lost");
        rl_ring_meta(shared->slots, slot, meta);
        if (meta[0] == 0) { /* the end: one for each reader */
            CHECK(rl_ring_release(&shared->ring, shared->slots, slot, owner, held) == 0, "a release was refused");
            return NULL;
        }
        CHECK(is_filled(shared->rows[slot], (uint64_t)meta[0] * 1000003u + (uint64_t)meta[1]), "a fragment is torn");
        if (i % 16 == 0) {
            CHECK(rl_ring_reclaim(&shared->ring, shared->slots, NUM_SLOTS, owner) == 1, "reclaim missed a slot");
            CHECK(rl_ring_release(&shared->ring, shared->slots, slot, owner, held) == -ESTALE,
                  "a late release was accepted");
            continue;
        }
        atomic_fetch_add(&num_taken, 1);
        CHECK(rl_ring_release(&shared->ring, shared->slots, slot, owner, held) == 0, "a release was refused");
    }
}

static void run_ring(void)
{
    pthread_t writers[NUM_WRITERS], readers[NUM_READERS];
    uint32_t held[NUM_SLOTS];
    int64_t counts[7];
    for (uintptr_t i = 0; i < NUM_READERS; i++)
        pthread_create(&readers[i], NULL, read_fragments, (void *)(i + 1));
    for (uintptr_t i = 0; i < NUM_WRITERS; i++)
        pthread_create(&writers[i], NULL, write_fragments, (void *)(i + 1 + NUM_READERS));
    for (int i = 0; i < NUM_WRITERS; i++)
        pthread_join(writers[i], NULL);
    for (int i = 0; i < NUM_READERS; i++) {
        int64_t slot = rl_ring_claim(&shared->ring, shared->slots, NUM_SLOTS, 99, 20 * SECOND_NS, held);
        CHECK(slot >= 0, "the end found no slot");
        rl_ring_publish(&shared->ring, shared->slots, slot, 99, held, 0, 0, 0, 0);
    }
    for (int i = 0; i < NUM_READERS; i++)
        pthread_join(readers[i], NULL);
    rl_ring_counts(&shared->ring, shared->slots, NUM_SLOTS, counts);
    CHECK(counts[0] == NUM_SLOTS, "a slot was not given back");
    CHECK(num_taken + counts[4] == num_published, "fragments were lost or read twice");
    printf("ring: %lld fragments, %lld overwritten, %lld late calls\n", (long long)num_published, (long long)counts[4],
           (long long)counts[5]);
}

/* -- mailboxes: one request in 16 is posted anew without waiting, as by a restarted actor -------------------------- */

static void *ask(void *argument)
{
    int64_t lane = (int64_t)(uintptr_t)argument;
    for (int64_t i = 1; i <= rounds; i++) {
        fill(shared->request_rows[lane], (uint64_t)(lane * 1000003 + i));
        rl_mailbox_post(&shared->doorbell, shared->boxes, lane, lane, i, i * 3, i * 5);
        if (i % 16 == 0) /* the same rows: a live server may be reading those of the withdrawn request */
            rl_mailbox_post(&shared->doorbell, shared->boxes, lane, lane, i, i * 3, i * 5);
        CHECK(rl_mailbox_wait_reply(shared->boxes, lane, 20 * SECOND_NS) == 0, "no reply: a wake-up was lost");
        CHECK(is_filled(shared->reply_rows[lane], (uint64_t)(lane * 1000003 + i + 7)), "a reply is torn or another's");
    }
    return NULL;
}

static void *serve(void *argument)
{
    static int64_t columns[6][NUM_LANES];
    static uint32_t served[NUM_LANES];
    rl_pending out = {columns[0], columns[1], columns[2], columns[3], columns[4], columns[5], served};
    int64_t num_late = 0;
    while (!rl_control_stop(&shared->control)) {
        uint32_t seen = rl_doorbell_count(&shared->doorbell);
        int64_t num = rl_mailbox_pending(shared->boxes, NUM_LANES, &out);
        if (num == 0) {
            rl_doorbell_wait(&shared->doorbell, seen, SECOND_NS / 50);
            continue;
        }
        for (int64_t i = 0; i < num; i++) {
            int64_t lane = out.lane[i], step = out.step[i];
            CHECK(out.slot[i] == lane && out.fragment_index[i] == 3 * step && out.required_version[i] == 5 * step,
                  "a request is torn");
            CHECK(i == 0 || out.arrival_ns[i - 1] <= out.arrival_ns[i], "requests are out of order");
            CHECK(is_filled(shared->request_rows[lane], (uint64_t)(lane * 1000003 + step)), "request rows are torn");
            fill(shared->reply_rows[lane], (uint64_t)(lane * 1000003 + step + 7));
        }
        int64_t late = rl_mailbox_reply(shared->boxes, NUM_LANES, out.lane, num, served, 1);
        CHECK(late >= 0, "a reply was refused");
        num_late += late;
    }
    *(int64_t *)argument = num_late;
    return NULL;
}

static void run_mailboxes(void)
{
    pthread_t actors[NUM_LANES], server;
    int64_t num_late = 0;
    pthread_create(&server, NULL, serve, &num_late);
    for (uintptr_t lane = 0; lane < NUM_LANES; lane++)
        pthread_create(&actors[lane], NULL, ask, (void *)lane);
    for (int lane = 0; lane < NUM_LANES; lane++)
        pthread_join(actors[lane], NULL);
    rl_control_set_stop(&shared->control, 1);
    pthread_join(server, NULL);
    printf("mailboxes: %lld requests, %lld late replies\n", (long long)(rounds * NUM_LANES), (long long)num_late);
}

/* -- weight board -------------------------------------------------------------------------------------------------- */

static _Atomic int64_t num_reads;

static void *read_weights(void *argument)
{
    uint8_t out[WEIGHT_BYTES];
    int64_t newest = -1;
    (void)argument;
    while (newest + 1 < rounds) {
        newest = rl_board_wait(&shared->board, newest + 1, 20 * SECOND_NS);
        CHECK(newest >= 0, "no version came: a wake-up was lost");
        int64_t found = rl_board_read(&shared->board, shared->buffers, STRIDE, num_reads % 2 ? -1 : newest, out, WEIGHT_BYTES);
        if (found < 0)
            continue;
        for (int i = 0; i < WEIGHT_BYTES; i++)
            CHECK(out[i] == found % 251, "weights are torn");
        atomic_fetch_add(&num_reads, 1);
    }
    return NULL;
}

static void run_board(void)
{
    pthread_t readers[NUM_READERS];
    uint8_t flat[WEIGHT_BYTES];
    for (int i = 0; i < NUM_READERS; i++)
        pthread_create(&readers[i], NULL, read_weights, NULL);
    for (int64_t version = 0; version < rounds; version++) {
        memset(flat, (int)(version % 251), WEIGHT_BYTES);
        rl_board_publish(&shared->board, shared->buffers, STRIDE, version, flat, WEIGHT_BYTES);
    }
    for (int i = 0; i < NUM_READERS; i++)
        pthread_join(readers[i], NULL);
    CHECK(num_reads > 0, "no version was read");
    printf("weight board: %lld versions, %lld reads\n", (long long)rounds, (long long)num_reads);
}

/* -- copies and noise: for the address and undefined-behaviour sanitizers ------------------------------------------ */

static void run_copies(void)
{
    enum { SLOTS = 3, STEPS = 4, BLOCK = 5 };
    uint8_t *slab = malloc(SLOTS * STEPS * BLOCK), *rows = malloc(2 * BLOCK), *batch = malloc(STEPS * 2 * BLOCK);
    int64_t slots[2] = {2, 0}, steps[2] = {3, 1};
    for (int i = 0; i < SLOTS * STEPS * BLOCK; i++)
        slab[i] = (uint8_t)i;
    rl_copy step = {slab, rows, BLOCK, 0}, whole = {slab, batch, BLOCK, 2 * BLOCK};
    CHECK(rl_gather_step(&step, 1, slots, steps, 2, SLOTS, STEPS) == 0, "gather");
    CHECK(rows[0] == 11 * BLOCK && rows[BLOCK] == BLOCK, "gathered rows are wrong");
    CHECK(rl_scatter_step(&step, 1, slots, steps, 2, SLOTS, STEPS) == 0, "scatter");
    rl_gather_fragment(&whole, 1, 1, 0, STEPS);
    rl_gather_fragment(&whole, 1, 2, 1, STEPS);
    CHECK(batch[BLOCK] == 8 * BLOCK && batch[(STEPS - 1) * 2 * BLOCK] == 7 * BLOCK, "a gathered fragment is wrong");
    float *noise = malloc(2 * 7 * sizeof(float));
    CHECK(rl_uniform(UINT64_MAX, slots, steps, 2, 7, noise) == 0, "uniform");
    free(slab), free(rows), free(batch), free(noise);
    printf("copies and noise: right\n");
}

int main(int argc, char **argv)
{
    rounds = argc > 1 ? atoll(argv[1]) : 5000;
    shared = mmap(NULL, sizeof(shared_memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap failed");
    run_ring();
    run_mailboxes();
    run_board();
    run_copies();
    run_layers();
    return 0;
}
