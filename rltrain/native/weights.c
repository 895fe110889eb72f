/* The weight board: two versions, each under a seqlock, and the number of the newest one. */
#include "futex.h"

#include <errno.h>

/* O(bytes). The version is announced after its bytes are complete. */
void rl_board_publish(rl_board *board, uint8_t *buffers, uint64_t stride_bytes, int64_t version,
                      const uint8_t *source, uint64_t nbytes)
{
    uint64_t half = (uint64_t)version & 1;
    rl_seqlock_write(&board->buffers[half], buffers + half * stride_bytes, version, source, nbytes);
    atomic_store_explicit(&board->latest_plus_one, version + 1, memory_order_release);
    rl_event_notify(&board->published);
}

int64_t rl_board_latest(rl_board *board)
{
    return atomic_load_explicit(&board->latest_plus_one, memory_order_acquire) - 1;
}

/* Copy version `wanted`, or with -1 the newest. Returns the version, or -ENOENT when it is gone or not there yet.
 * The newest version's buffer is rewritten only after another became the newest, so each repetition means that a
 * publication came in between. O(bytes). */
int64_t rl_board_read(rl_board *board, const uint8_t *buffers, uint64_t stride_bytes, int64_t wanted, uint8_t *target,
                      uint64_t nbytes)
{
    int64_t previous = -1;
    for (;;) {
        int64_t latest = rl_board_latest(board);
        int64_t version = wanted < 0 ? latest : wanted;
        int64_t tag = -1;
        if (latest < 0 || version > latest || (wanted < 0 && latest == previous))
            return -ENOENT;
        uint64_t half = (uint64_t)version & 1;
        int64_t rc = rl_seqlock_read(&board->buffers[half], buffers + half * stride_bytes, nbytes, &tag, target);
        if (rc == (int64_t)nbytes && tag == version)
            return version;
        if (wanted >= 0)
            return -ENOENT;
        previous = latest;
    }
}

/* Wait for a version. Returns the newest, which is older after a timeout or a signal. */
int64_t rl_board_wait(rl_board *board, int64_t at_least, int64_t timeout_ns)
{
    int64_t deadline_ns = rl_now_ns() + timeout_ns;
    for (;;) {
        uint32_t seen = rl_event_count(&board->published);
        int64_t latest = rl_board_latest(board);
        if (latest >= at_least || rl_event_wait(&board->published, seen, deadline_ns) < 0)
            return latest;
    }
}
